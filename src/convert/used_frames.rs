//! Collects the frames and strings that a batch uses, from one or several tables.

use rustc_hash::FxHashMap;

use crate::model::{Frame, IdSet, NONE, Tables};

/// The frames of one batch.
#[derive(Debug)]
pub(crate) struct UsedFrames {
    frames: IdSet,
}

impl UsedFrames {
    pub fn new(tables: &Tables) -> Self {
        UsedFrames { frames: IdSet::new(tables.frames.len()) }
    }

    /// The tables have grown to this many frames.
    pub fn resize(&mut self, frames: usize) {
        self.frames.resize(frames);
    }

    /// The batch uses this frame.
    #[inline(always)]
    pub fn note(&mut self, frame: u32) {
        self.frames.insert(frame);
    }

    /// The batch's frames and the strings that they name, in order; the next batch begins.
    pub fn take(&mut self, tables: &Tables) -> (Vec<u32>, Vec<u32>) {
        let frames: Vec<u32> = self.frames.drain().collect();
        let mut strings = IdSet::new(tables.strings.len());
        for frame in &frames {
            let frame = &tables.frames[*frame as usize];
            [frame.path, frame.function].into_iter().for_each(|string| strings.insert(string));
        }
        let strings = strings.drain().collect();
        (frames, strings)
    }
}

/// Tables to which definitions of others are added, each by its content.
#[derive(Debug)]
pub(crate) struct MergedTables {
    tables: Tables,
    strings: FxHashMap<Vec<u8>, u32>,
    frames: KnownFrames,
}

impl MergedTables {
    pub fn new(tables: Tables) -> Self {
        let ids = 0..tables.strings.len() as u32;
        let named = |id: u32| tables.strings.get(id).map(|string| (string.to_vec(), id));
        // Of equal strings the first.
        let strings = ids.rev().filter_map(named).collect();
        let mut frames = KnownFrames::default();
        for (id, frame) in (0..).zip(&tables.frames) {
            frames.add(*frame, id);
        }
        MergedTables { tables, strings, frames }
    }

    /// Adds frames of `from`, of which none may be named twice, and returns their ids here.
    pub fn add(&mut self, from: &Tables, frames: impl IntoIterator<Item = u32>) -> Vec<u32> {
        self.frames.begin_batch();
        frames.into_iter().map(|frame| self.frame(from, frame)).collect()
    }

    fn frame(&mut self, from: &Tables, frame: u32) -> u32 {
        let frame = from.frames[frame as usize];
        let path = self.string(from, frame.path);
        let function = self.string(from, frame.function);
        let frame = Frame { path, function, ..frame };
        let MergedTables { tables, frames, .. } = self;
        frames.get_or_add(frame, || {
            tables.frames.push(frame);
            tables.frames.len() as u32 - 1
        })
    }

    /// A string that doesn't exist stays so: only frames that no sample uses name one.
    fn string(&mut self, from: &Tables, string: u32) -> u32 {
        let Some(bytes) = from.strings.get(string) else { return NONE };
        if let Some(id) = self.strings.get(bytes) {
            return *id;
        }
        let id = self.tables.strings.push(bytes);
        self.strings.insert(bytes.to_vec(), id);
        id
    }

    pub fn into_tables(self) -> Tables {
        self.tables
    }
}

/// Frames by their content. Equal ones of one batch stay apart, as profiles hold them: the second of them
/// is the second of another batch.
#[derive(Debug, Default)]
pub(crate) struct KnownFrames {
    ids: FxHashMap<Frame, Known>,
    batch: u64,
}

#[derive(Debug, Default)]
struct Known {
    ids: Vec<u32>,
    /// The batch in which it was last asked for, and how often.
    batch: u64,
    used: usize,
}

impl KnownFrames {
    /// From here on, frames are looked up by content.
    pub fn begin_batch(&mut self) {
        self.batch += 1;
    }

    /// The batch's frame is known by this id.
    fn add(&mut self, frame: Frame, id: u32) {
        self.ids.entry(frame).or_default().ids.push(id);
    }

    /// The id of a frame that the batch has not asked for yet; `new` makes one where none is left.
    pub fn get_or_add(&mut self, frame: Frame, new: impl FnOnce() -> u32) -> u32 {
        let known = self.ids.entry(frame).or_default();
        if known.batch != self.batch {
            known.batch = self.batch;
            known.used = 0;
        }
        known.used += 1;
        if let Some(id) = known.ids.get(known.used - 1) {
            return *id;
        }
        let id = new();
        known.ids.push(id);
        id
    }
}
