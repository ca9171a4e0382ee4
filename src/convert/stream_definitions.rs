//! The strings and frames that a stream has defined so far, and their ids in the profile that is made from it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::convert::used_frames::KnownFrames;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::DEFINITIONS;
use crate::model::{Frame, Location, Tables};
use crate::protocol::message::{FrameDef, StrDef};

/// Strings and frames as the stream has defined them, and where they are in the profile.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    strings: FxHashMap<u32, Defined<Vec<u8>>>,
    /// Frames that are in the profile without a name, by the string that was missing.
    nameless: FxHashMap<u32, Vec<u32>>,
    frames: FxHashMap<u32, Frame>,
    places: IdMap,
    /// What is in the profile from batches whose ids are forgotten.
    known_strings: FxHashMap<Vec<u8>, u32>,
    known_frames: KnownFrames,
    forgets: bool,
    undefined: Undefined,
}

/// Ids that were used without a definition.
#[derive(Debug, Default)]
struct Undefined {
    frames: FxHashSet<u32>,
    strings: FxHashSet<u32>,
}

#[derive(Debug)]
struct Defined<T> {
    value: T,
    index: Option<u32>,
}

impl Definitions {
    /// A batch begins whose ids mean something else.
    pub fn forget(&mut self) {
        self.nameless.clear();
        self.forgets = true;
        self.strings.clear();
        self.frames.clear();
        self.places = IdMap::default();
        self.undefined = Undefined::default();
        self.known_frames.begin_batch();
    }

    /// What was put into the profile is not in the next one.
    pub fn begin_profile(&mut self) {
        self.nameless.clear();
        self.strings.values_mut().for_each(|string| string.index = None);
        self.places.begin_profile();
        self.known_strings.clear();
        self.known_frames = KnownFrames::default();
    }

    pub fn strings(&mut self, body: &StrDef) -> Result<()> {
        has_room("strings", self.strings.len(), body.str_id.len())?;
        for (id, value) in body.str_id.iter().zip(&body.value) {
            let bytes = match body.base64.as_ref().and_then(|base64| base64.get(id)) {
                Some(base64) => STANDARD
                    .decode(base64)
                    .map_err(|fault| Error::stream(format!("string {id} has bad base64: {fault}")))?,
                None => value.clone().into_bytes(),
            };
            define(&mut self.strings, *id, bytes)
                .map_err(|()| Error::stream(format!("string {id} is defined again with another value")))?;
            // From here on these frames have it.
            for frame in self.nameless.remove(id).unwrap_or_default() {
                self.places.set(frame, IdSlot::Unused);
            }
        }
        Ok(())
    }

    pub fn frames(&mut self, body: &FrameDef) -> Result<()> {
        has_room("frames", self.frames.len(), body.frame_id.len())?;
        let at =
            |column: &Option<Vec<Option<i32>>>, row: usize| column.as_ref().and_then(|column| column[row]);
        for (row, id) in body.frame_id.iter().enumerate() {
            let frame = Frame {
                path: body.path_str_id[row],
                function: body.func_str_id[row],
                location: Location {
                    line: at(&body.line, row),
                    end_line: at(&body.end_line, row),
                    col: at(&body.col, row),
                    end_col: at(&body.end_col, row),
                },
                opcode: body.opcode.as_ref().and_then(|column| column[row]),
            };
            match self.frames.get(id) {
                None => {
                    self.frames.insert(*id, frame);
                    self.places.set(*id, IdSlot::Unused);
                }
                Some(known) if *known == frame => {}
                Some(_) => {
                    return Err(Error::stream(format!("frame {id} is defined again with another value")));
                }
            }
        }
        Ok(())
    }

    /// How many frames among these have no definition, and how many strings have none that the others are named
    /// by. None is counted again.
    pub fn missing(&mut self, frames: &[u32]) -> Missing {
        let Definitions { places, undefined, .. } = self;
        let mut missing = Missing::default();
        for id in frames {
            match (places.get(*id), self.frames.get(id)) {
                (IdSlot::At(_), _) => {}
                (_, None) => missing.frames += usize::from(undefined.frames.insert(*id)),
                (_, Some(frame)) => {
                    let names = [frame.path, frame.function];
                    let names = names.into_iter().filter(|id| !self.strings.contains_key(id));
                    missing.strings += names.filter(|id| undefined.strings.insert(*id)).count();
                }
            }
        }
        missing
    }

    /// The profile's index of frame `id`, if it has one already.
    pub fn known_frame(&self, id: u32) -> Option<u32> {
        match self.places.get(id) {
            IdSlot::At(index) => Some(index),
            IdSlot::Undefined | IdSlot::Unused => None,
        }
    }

    /// The profile's index of frame `id`; `sink` is given what is not in the profile yet. An id without a
    /// definition gets a name that says so.
    pub fn frame(&mut self, id: u32, sink: &mut impl TableSink) -> u32 {
        if let Some(index) = self.known_frame(id) {
            return index;
        }
        let value = match self.frames.get(&id) {
            Some(frame) => *frame,
            None => {
                let name = self.add_string(format!("<undefined frame {id}>").into_bytes(), sink);
                let path = self.add_string(b"~".to_vec(), sink);
                let frame = Frame { path, function: name, location: Location::default(), opcode: None };
                let index = sink.frame(&frame);
                self.places.set(id, IdSlot::At(index));
                return index;
            }
        };
        for name in [value.path, value.function] {
            if !self.strings.contains_key(&name) {
                self.nameless.entry(name).or_default().push(id);
            }
        }
        let path = self.string(value.path, sink);
        let function = self.string(value.function, sink);
        let frame = Frame { path, function, ..value };
        let index = if self.forgets {
            self.known_frames.get_or_add(frame, || sink.frame(&frame))
        } else {
            sink.frame(&frame)
        };
        self.places.set(id, IdSlot::At(index));
        index
    }

    fn string(&mut self, id: u32, sink: &mut impl TableSink) -> u32 {
        let bytes = match self.strings.get(&id) {
            Some(Defined { index: Some(index), .. }) => return *index,
            Some(string) => string.value.clone(),
            None => format!("<undefined string {id}>").into_bytes(),
        };
        let index = if self.forgets { self.add_string(bytes, sink) } else { sink.string(&bytes) };
        if let Some(string) = self.strings.get_mut(&id) {
            string.index = Some(index);
        }
        index
    }

    fn add_string(&mut self, bytes: Vec<u8>, sink: &mut impl TableSink) -> u32 {
        match self.known_strings.get(&bytes) {
            Some(index) => *index,
            None => {
                let index = sink.string(&bytes);
                self.known_strings.insert(bytes, index);
                index
            }
        }
    }
}

fn has_room(what: &str, known: usize, more: usize) -> Result<()> {
    if known + more <= DEFINITIONS {
        return Ok(());
    }
    let fault =
        format!("the run defines more than {DEFINITIONS} {what}, the limit; those of this message are lost");
    Err(Error::new(ErrorKind::Limit, fault))
}

/// How much of what a message uses is not defined.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Missing {
    pub frames: usize,
    pub strings: usize,
}

/// What is known of a frame id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum IdSlot {
    #[default]
    Undefined,
    /// Not in the profile yet.
    Unused,
    At(u32),
}

/// The places of frames by their ids, which are small numbers in most streams.
#[derive(Debug, Default)]
struct IdMap {
    small: Vec<IdSlot>,
    others: FxHashMap<u32, IdSlot>,
}

impl IdMap {
    /// Ids below this are looked up without hashing.
    const SMALL: u32 = 1 << 20;

    #[inline]
    fn get(&self, id: u32) -> IdSlot {
        match self.small.get(id as usize) {
            Some(place) => *place,
            None => self.others.get(&id).copied().unwrap_or_default(),
        }
    }

    fn set(&mut self, id: u32, place: IdSlot) {
        if id >= Self::SMALL {
            self.others.insert(id, place);
            return;
        }
        if id as usize >= self.small.len() {
            self.small.resize(id as usize + 1, IdSlot::Undefined);
        }
        self.small[id as usize] = place;
    }

    fn begin_profile(&mut self) {
        for place in self.small.iter_mut().chain(self.others.values_mut()) {
            if let IdSlot::At(_) = place {
                *place = IdSlot::Unused;
            }
        }
    }
}

/// Where definitions go once they are used.
pub(crate) trait TableSink {
    fn string(&mut self, bytes: &[u8]) -> u32;
    fn frame(&mut self, frame: &Frame) -> u32;
}

impl TableSink for Tables {
    fn string(&mut self, bytes: &[u8]) -> u32 {
        self.strings.push(bytes)
    }

    fn frame(&mut self, frame: &Frame) -> u32 {
        self.frames.push(*frame);
        self.frames.len() as u32 - 1
    }
}

/// Adds a definition; the same one again is none.
fn define<T: PartialEq>(definitions: &mut FxHashMap<u32, Defined<T>>, id: u32, value: T) -> Result<(), ()> {
    match definitions.get(&id) {
        Some(known) if known.value == value => Ok(()),
        Some(_) => Err(()),
        None => {
            definitions.insert(id, Defined { value, index: None });
            Ok(())
        }
    }
}
