//! Which frames and strings a batch uses.

use crate::model::Tables;

/// Frames of one batch, each noted once.
#[derive(Debug)]
pub(crate) struct UsedFrames {
    /// The last batch that noted the frame, plus one.
    noted: Vec<u64>,
    batch: u64,
    frames: Vec<u32>,
}

impl UsedFrames {
    pub fn new(tables: &Tables) -> Self {
        UsedFrames { noted: vec![0; tables.frames.len()], batch: 1, frames: Vec::new() }
    }

    /// The batch uses this frame.
    #[inline]
    pub fn note(&mut self, frame: u32) {
        let noted = &mut self.noted[frame as usize];
        if *noted != self.batch {
            *noted = self.batch;
            self.frames.push(frame);
        }
    }

    /// The batch's frames and the strings that they name, in order; the next batch begins.
    pub fn take(&mut self, tables: &Tables) -> (Vec<u32>, Vec<u32>) {
        self.batch += 1;
        let mut frames = std::mem::take(&mut self.frames);
        frames.sort_unstable();
        let names = |frame: &u32| {
            let frame = &tables.frames[*frame as usize];
            [frame.path, frame.function]
        };
        let mut strings: Vec<u32> = frames.iter().flat_map(names).collect();
        strings.sort_unstable();
        strings.dedup();
        (frames, strings)
    }
}
