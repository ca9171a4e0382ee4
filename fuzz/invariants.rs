//! What holds of every input, whatever its bytes. Each function here is a fuzz target, and panics where its
//! rules are broken; `tests/fuzz_corpus.rs` calls the same functions with the inputs that are kept.
//!
//! An input may be refused at any point. What is accepted has to come back the same.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Cursor, Read, Write};

use tachyon_jsonl::convert::{
    By, Flush, Outcome, ProfileOptions, ProfileSide, RunStream, Side, StreamOptions, StreamSide, ToBinary,
    ToChunks, Upgrade, diff, mismatches,
};

use tachyon_jsonl::error::{Error, ErrorKind, Result};
use tachyon_jsonl::format::{Framing, Outline, Packing, Part, Profile, Sequence};
use tachyon_jsonl::limits;
use tachyon_jsonl::model::{Cut, ThreadKey};
use tachyon_jsonl::protocol::{
    Checker, Decoded, Finding, FromMsgpack, Head, Lines, LmcacheTrace, Message, RawColumns, ToMsgpack,
    amended, decode, decode_cpython,
};

/// Samples of an input beyond which it is opened but not converted: a packed profile of some bytes may hold
/// millions, each run of which would take seconds.
const SAMPLES: u64 = 4_000;

/// The samples of a run by thread: time, status, and a hash of the stack by content.
type Samples = BTreeMap<ThreadKey, Vec<(u64, u8, u64)>>;

// ---- Profiles -------------------------------------------------------------------------------------------

/// Any bytes are a profile, or several, or none. A profile that is opened can be replayed, its stream is
/// well-formed, and the stream gives the same samples again.
pub fn profile(input: &[u8]) {
    let _ = Outline::read(&mut Cursor::new(input), 0, input.len() as u64);
    for run in runs(input) {
        run.check();
    }
}

/// What is recovered can be read without a fault, and is not recovered any further.
pub fn recover(input: &[u8]) {
    let Ok(recovered) = tachyon_jsonl::format::recover(&mut Cursor::new(input)) else { return };
    let mut copy = recovered.copy;
    let mut bytes = Vec::new();
    copy.read_to_end(&mut bytes).expect("memory has no errors");

    let mut source = Cursor::new(&bytes);
    let mut sequence = Sequence::open(&mut source).expect("what was recovered can be read");
    let (mut parts, mut samples) = (0, 0);
    while let Some(part) = sequence.next(&mut source).expect("what was recovered can be opened") {
        let Part::Profile(profile) = part else { panic!("what was recovered has a hole: {part:?}") };
        let contents = profile.contents();
        assert!(contents.faults.is_empty(), "what was recovered has a fault: {:?}", contents.faults);
        assert_eq!(contents.header.samples, contents.scan.samples, "as CPython's reader wants it");
        // A chunk is no input of CPython's.
        let is_file = recovered.framing == Framing::Files;
        assert!(!is_file || contents.warnings.is_empty(), "CPython refuses some: {:?}", contents.warnings);
        parts += 1;
        samples += contents.scan.samples;
    }
    assert_eq!((parts, samples), (recovered.parts, recovered.samples));

    let again = tachyon_jsonl::format::recover(&mut Cursor::new(&bytes)).expect("there is still something");
    // A run whose last chunk is gone stays without it.
    let is_end =
        |loss: &tachyon_jsonl::error::Error| loss.detail().starts_with("the run goes on after its chunk");
    let more: Vec<_> = again.losses.iter().filter(|loss| !is_end(loss)).collect();
    assert!(more.is_empty(), "what was recovered loses nothing more: {more:?}");
    let mut copy = again.copy;
    let mut bytes_again = Vec::new();
    copy.read_to_end(&mut bytes_again).expect("memory has no errors");
    assert!(bytes_again == bytes, "what was recovered is sound, and so it stays as it is");

    runs(&bytes).iter().for_each(Run::check);
}

/// A run of an input: a file, or all its chunks or framed profiles.
struct Run {
    samples: Samples,
    /// Whether nothing is lost or wrong.
    is_whole: bool,
    /// Messages of all types, made without counting ahead and on one thread.
    stream: Vec<u8>,
    /// Tables and losses, likewise.
    tables: Vec<u8>,
    /// The same, counted while the profiles were opened.
    counted_tables: Vec<u8>,
    /// Counts of frames.
    side: Side,
}

const ALL: &str = "raw,agg:5ms,heartbeat:10ms,loss";
const TABLES: &str = "agg:5ms,loss";

fn options(types: &str) -> StreamOptions {
    StreamOptions::new("r").expect("a run id").types(types.parse().expect("types"))
}

/// The runs that can be read of an input, if it has not too many samples.
fn runs(input: &[u8]) -> Vec<Run> {
    let mut source = Cursor::new(input);
    let Ok(mut sequence) = Sequence::open(&mut source) else { return Vec::new() };
    let framing = sequence.framing();
    let mut runs: Vec<Run> = Vec::new();
    let mut building: Option<Building> = None;
    let mut total = 0;
    let mut counted =
        Sequence::open(&mut Cursor::new(input)).expect("as before").counting(options(TABLES).counting());
    let mut counted_source = Cursor::new(input);
    loop {
        let Ok(part) = sequence.next(&mut source) else { break };
        let counted =
            counted.next(&mut counted_source).expect("what is opened without counting is opened with it");
        let (Some(part), Some(counted)) = (part, counted) else { break };
        if let Part::Profile(profile) = &part {
            total += profile.contents().scan.samples;
            if total > SAMPLES {
                return Vec::new();
            }
        }
        if framing == Framing::Files {
            runs.extend(building.take().map(Building::finish));
        }
        building.get_or_insert_with(|| Building::new(framing)).add(part, counted);
    }
    runs.extend(building.map(Building::finish));
    runs
}

/// A run that is being read.
struct Building {
    run: Run,
    streams: [RunStream; 3],
    side: ProfileSide,
}

impl Building {
    fn new(framing: Framing) -> Self {
        let stream = |types| RunStream::new(framing, options(types));
        Building {
            run: Run {
                samples: Samples::new(),
                is_whole: true,
                stream: Vec::new(),
                tables: Vec::new(),
                counted_tables: Vec::new(),
                side: Side::default(),
            },
            streams: [stream(ALL), stream(TABLES), stream(TABLES)],
            side: ProfileSide::new(By::Frame),
        }
    }

    fn add(&mut self, part: Part<&mut Cursor<&[u8]>>, counted: Part<&mut Cursor<&[u8]>>) {
        const SINKS: &str = "memory has no errors";
        let Building { run, streams: [all, tables, counted_tables], side } = self;
        match (part, counted) {
            (Part::Profile(mut profile), Part::Profile(mut counted)) => {
                run.is_whole &= profile.contents().faults.is_empty();
                add_samples(&mut profile, &mut run.samples);
                profile.content_hash().expect(SINKS);
                side.profile(&mut profile).expect(SINKS);
                all.profile(&mut profile, &mut run.stream).expect(SINKS);
                tables.profile(&mut profile, &mut run.tables).expect(SINKS);
                counted_tables.profile(&mut counted, &mut run.counted_tables).expect(SINKS);
            }
            (Part::Lost(lost), Part::Lost(_)) => {
                run.is_whole = false;
                all.lost(&lost, &mut run.stream).expect(SINKS);
                tables.lost(&lost, &mut run.tables).expect(SINKS);
                counted_tables.lost(&lost, &mut run.counted_tables).expect(SINKS);
            }
            _ => panic!("whether a part is lost does not depend on what is counted"),
        }
    }

    fn finish(self) -> Run {
        const SINKS: &str = "memory has no errors";
        let Building { mut run, streams: [all, tables, counted_tables], side } = self;
        let written = all.finish(&mut run.stream).expect(SINKS);
        assert_eq!(written.samples, count(&run.samples), "samples of the stream");
        run.is_whole &= written.complete;
        tables.finish(&mut run.tables).expect(SINKS);
        counted_tables.finish(&mut run.counted_tables).expect(SINKS);
        run.side = side.finish();
        run
    }
}

impl Run {
    /// Its streams are well-formed and hold the same as the profile; they become a profile again.
    fn check(&self) {
        for stream in [&self.stream, &self.tables] {
            let mut findings = findings(stream);
            // A wall clock may be set while a run goes on, and then chunks say so.
            findings.retain(|finding| !finding.what.starts_with("wall_usec does not go"));
            assert_eq!(findings, [], "our own stream is well-formed");
        }
        assert!(self.tables == self.counted_tables, "counting ahead gives the same stream");

        let Some(side) = side_of(&self.stream) else {
            assert!(self.samples.is_empty(), "the samples of a stream can be counted");
            return;
        };
        let rows = diff(&self.side, &side);
        assert!(
            rows.iter().all(|row| row.self_.samples() == 0),
            "self counts of profile and stream: {rows:?}"
        );
        assert_eq!(mismatches(&self.side, &side).0, [""; 0], "facts of profile and stream");

        let Ok(Made { profile, losses }) = to_profile(&self.stream) else {
            assert!(!self.is_whole && self.samples.is_empty(), "the stream of a profile becomes a profile");
            return;
        };
        if self.is_whole {
            assert_eq!(losses, [""; 0], "a complete stream loses nothing");
        }
        let chunks = to_chunks(&self.stream).expect("what becomes a profile becomes chunks");
        for (made, what) in [(&profile, "profile"), (&chunks.profile, "chunks")] {
            let samples = sound_samples(made);
            assert!(samples == self.samples, "the {what} of a stream hold the samples that it was made of");
        }

        // A clock that went back may have put records out of order, which the first time puts right. From
        // there on nothing changes any more.
        let second = profile_of_sound(&profile);
        assert!(profile_of_sound(&second) == second, "profile, stream, profile: the same bytes");
    }
}

/// The profile that becomes of the stream of a sound one.
fn profile_of_sound(profile: &[u8]) -> Vec<u8> {
    let runs = runs(profile);
    let [run] = runs.as_slice() else { panic!("what we write is one run") };
    assert!(run.is_whole, "what we write has no fault");
    let Made { profile, losses } = to_profile(&run.stream).expect("a sound profile's stream");
    assert_eq!(losses, [""; 0], "a sound profile's stream is complete");
    profile
}

fn count(samples: &Samples) -> u64 {
    samples.values().map(|samples| samples.len() as u64).sum()
}

/// Adds the samples of a profile, which come in time order and as many as it said when it was opened.
fn add_samples<R: Read + std::io::Seek>(profile: &mut Profile<R>, samples: &mut Samples) {
    let mut by_stacks = 0;
    profile.stacks(|_, _, _, samples| by_stacks += samples).expect("memory has no errors");
    assert_eq!(by_stacks, profile.contents().scan.samples, "samples of all stacks");

    let before = count(samples);
    let (mut replay, contents) = profile.replay().expect("memory has no errors");
    let mut last_key = 0;
    loop {
        replay.load(1000).expect("memory has no errors");
        let complete = replay.complete_before();
        let buffer = replay.buffer();
        if buffer.cut(1000, complete, Cut::AfterInstant) == 0 {
            break;
        }
        let mut highest = last_key;
        for slice in buffer.slices() {
            let keys = slice.keys();
            assert!(keys.first().is_none_or(|key| *key >= last_key), "cuts are in time order");
            assert!(keys.is_sorted(), "a thread is in time order");
            highest = keys.last().map_or(highest, |key| highest.max(*key));
            let rows = samples.entry(slice.thread()).or_default();
            let mut stacks = Vec::new();
            slice.stacks(|stack, samples| {
                let stack = hash_of(stack, contents);
                stacks.resize(stacks.len() + samples, stack);
            });
            assert_eq!(stacks.len(), slice.times().len(), "a stack for each sample");
            let times = slice.times().iter().zip(slice.status());
            rows.extend(times.zip(stacks).map(|((time, status), stack)| (*time, *status, stack)));
        }
        last_key = highest;
        buffer.advance();
    }
    let scan = &contents.scan;
    assert_eq!(count(samples) - before, scan.samples, "as many samples as the first walk found");
    assert_eq!(
        scan.threads.iter().map(|thread| thread.samples).sum::<u64>(),
        scan.samples,
        "samples of all threads"
    );
}

fn hash_of(stack: &[u32], contents: &tachyon_jsonl::format::Contents) -> u64 {
    let mut hasher = DefaultHasher::new();
    let tables = &contents.tables;
    for frame in stack {
        let frame = tables.frames[*frame as usize];
        for string in [frame.path, frame.function] {
            tables.strings.get(string).expect("a frame in use has its names").hash(&mut hasher);
        }
        (frame.location, frame.opcode).hash(&mut hasher);
    }
    hasher.finish()
}

/// The samples of what we have written, in which nothing may be wrong.
fn sound_samples(bytes: &[u8]) -> Samples {
    let mut source = Cursor::new(bytes);
    let mut sequence = Sequence::open(&mut source).expect("readable");
    let mut samples = Samples::new();
    while let Some(part) = sequence.next(&mut source).expect("what we write can be opened") {
        let Part::Profile(mut profile) = part else { panic!("what we write has a hole: {part:?}") };
        assert!(profile.contents().faults.is_empty(), "what we write has no fault");
        add_samples(&mut profile, &mut samples);
    }
    samples
}

// ---- Streams --------------------------------------------------------------------------------------------

/// A line is understood or refused in the same way whether it is in our own shape, which is read by hand, or
/// has a blank in it, which leaves it to the general parser.
pub fn stream(input: &[u8]) {
    let mut columns = RawColumns::default();
    let mut general_columns = RawColumns::default();
    each_line(input, |_, line| {
        let decoded = decode(line, &mut columns);
        let blank = line.iter().position(|byte| *byte == b'{').map_or(0, |at| at + 1);
        let spaced = [&line[..blank], b" ", &line[blank..]].concat();
        let general = decode(&spaced, &mut general_columns);
        match (&decoded, &general) {
            (Ok(ours), Ok(general)) => {
                assert_eq!(ours, general, "both parsers read the same");
                if ours.message == Message::Raw {
                    assert!(same_columns(&columns, &general_columns), "both parsers read the same columns");
                }
            }
            (Err(_), Err(_)) => {}
            _ => panic!("one parser takes what the other refuses: {decoded:?} {general:?}"),
        }
        match &decoded {
            Ok(Decoded { message: Message::CPython(kind), .. }) => drop(decode_cpython(kind, line)),
            Ok(decoded) => outside(line, decoded),
            Err(_) => {}
        }
    });
    let _ = findings(input);
    let _ = side_of(input);
}

/// What a relay knows of a line is what the line says.
fn outside(line: &[u8], decoded: &Decoded) {
    if let Some(head) = Head::of(line) {
        assert_eq!((head.run_id, Some(head.seq)), (decoded.envelope.run_id.as_str(), decoded.envelope.seq));
    }
    if decoded.envelope.seq.is_some() {
        let amended = amended(line, 3, &BTreeMap::new()).expect("a message with a number");
        let mut columns = RawColumns::default();
        let again = decode(&amended, &mut columns);
        assert_eq!(again.expect("an amended message").envelope, decoded.envelope);
    }
}

fn same_columns(a: &RawColumns, b: &RawColumns) -> bool {
    let head = |c: &RawColumns| (c.batch, c.start_usec, c.samples);
    head(a) == head(b)
        && a.stack_frame_id == b.stack_frame_id
        && a.stack_parent == b.stack_parent
        && a.threads().len() == b.threads().len()
        && a.threads().iter().zip(b.threads()).all(|(a, b)| {
            (a.thread_id, a.interpreter_id) == (b.thread_id, b.interpreter_id)
                && (&a.times_usec, &a.status, &a.stacks) == (&b.times_usec, &b.status, &b.stacks)
        })
}

/// Any lines become a sound profile, in one piece or in chunks, with the same samples; well-formed ones that
/// tell of no loss become one without a loss.
pub fn to_binary(input: &[u8]) {
    let (profile, chunks) = (to_profile(input), to_chunks(input));
    let (made, chunks) = match (profile, chunks) {
        (Ok(made), Ok(chunks)) => (made, chunks),
        (Err(_), Err(_)) => return,
        (Ok(_), Err(error)) | (Err(error), Ok(_)) => panic!("both layouts take the same streams: {error}"),
    };
    let (mut whole, mut in_chunks) = (sound_samples(&made.profile), sound_samples(&chunks.profile));
    let is_well_formed = findings(input).is_empty();
    if is_well_formed && !tells_of_loss(input) {
        // A profile holds only the modes and versions of CPython.
        let lost = made.losses.iter().filter(|loss| !loss.contains("cannot be stored in a profile"));
        assert_eq!(lost.collect::<Vec<_>>(), [""; 0], "a well-formed stream loses nothing");
    }
    if !is_well_formed {
        // A thread that stands twice in a message has no order of its own.
        for rows in whole.values_mut().chain(in_chunks.values_mut()) {
            rows.sort_unstable();
        }
    }
    assert!(whole == in_chunks, "both layouts hold the same samples");
    runs(&made.profile).iter().for_each(Run::check);
    runs(&chunks.profile).iter().for_each(Run::check);
}

/// Whether a stream says itself that something is missing.
fn tells_of_loss(input: &[u8]) -> bool {
    let mut told = false;
    let mut columns = RawColumns::default();
    each_line(input, |_, line| {
        told |= match decode(line, &mut columns).map(|decoded| decoded.message) {
            Ok(Message::Loss(_)) => true,
            Ok(Message::Error(error)) => error.fatal,
            Ok(Message::End(end)) => !end.complete,
            _ => false,
        };
    });
    told
}

/// A profile made of a stream, and what was lost.
struct Made {
    profile: Vec<u8>,
    losses: Vec<String>,
}

fn to_profile(stream: &[u8]) -> Result<Made> {
    let mut to_binary = ToBinary::new(Cursor::new(Vec::new()), packing());
    try_each_line(stream, |number, line| to_binary.line(number, line))?;
    let Outcome { sink, losses, .. } = to_binary.finish()?;
    Ok(Made { profile: sink.into_inner(), losses: words(&losses) })
}

fn to_chunks(stream: &[u8]) -> Result<Made> {
    let mut profile = Vec::new();
    let flush = Flush { samples: Some(3), ..Flush::default() };
    let mut to_chunks = ToChunks::new(packing(), flush, |mut chunk| {
        profile.extend(chunk.header);
        chunk.body().read_to_end(&mut profile)?;
        Ok(())
    });
    try_each_line(stream, |number, line| to_chunks.line(number, line))?;
    let losses = words(&to_chunks.finish()?.losses);
    Ok(Made { profile, losses })
}

fn packing() -> ProfileOptions {
    ProfileOptions::default().packing(Packing::None)
}

fn words(errors: &[Error]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// The counts of a stream, if it is one run that has some.
fn side_of(stream: &[u8]) -> Option<Side> {
    let mut side = StreamSide::new(By::Frame, None);
    try_each_line(stream, |number, line| side.line(number, line)).ok()?;
    Some(side.finish().ok()?.0)
}

/// What the checker finds; one of an empty stream is left out.
fn findings(stream: &[u8]) -> Vec<Finding> {
    let mut checker = Checker::default();
    let mut findings = Vec::new();
    let mut lines = Lines::new(stream);
    while let Some(line) = lines.next_line().expect("no line is too long") {
        checker.line(line.number, line.bytes, line.terminated, &mut findings);
    }
    checker.finish(&mut findings);
    findings
}

fn each_line(stream: &[u8], mut each: impl FnMut(u64, &mut [u8])) {
    try_each_line(stream, |number, line| {
        each(number, line);
        Ok(())
    })
    .expect("no line is too long");
}

fn try_each_line(stream: &[u8], mut each: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<()> {
    let mut lines = Lines::new(stream);
    while let Some(line) = lines.next_message()? {
        each(line.number, line.bytes)?;
    }
    Ok(())
}

// ---- MessagePack ----------------------------------------------------------------------------------------

/// Frames become lines, and lines frames. What has gone through both once stays as it is.
pub fn msgpack(input: &[u8]) {
    let mut lines = Vec::new();
    // An error comes after the lines that were whole.
    let _ = FromMsgpack::new(input).read_to_end(&mut lines);
    there_and_back(&lines);
    there_and_back(input);
    if LmcacheTrace::<&[u8]>::is_begun_by(input) {
        trace(input);
    }
}

fn there_and_back(lines: &[u8]) {
    let mut columns = RawColumns::default();
    each_line(lines, |_, line| {
        let Ok(decoded) = decode(line, &mut columns) else { return };
        let mut to_msgpack = ToMsgpack::new(Vec::new());
        let line = [&*line, b"\n"].concat();
        if to_msgpack.write_all(&line).is_err() {
            return;
        }
        // The first message of a run comes with a header, the others need one before them.
        let mut frames = header();
        frames.extend(to_msgpack.into_sink());
        let mut back = Vec::new();
        FromMsgpack::new(frames.as_slice()).read_to_end(&mut back).expect("our own frames can be read");
        let mut columns_back = RawColumns::default();
        let decoded_back = decode(&back, &mut columns_back).expect("our own lines can be read");
        assert_eq!(decoded_back, decoded, "there and back");
        if decoded.message == Message::Raw {
            assert!(same_columns(&columns, &columns_back), "columns there and back");
        }
        let mut again = ToMsgpack::new(Vec::new());
        again.write_all(&back).expect("as before");
        assert!([header(), again.into_sink()].concat() == frames, "back and there");
    });
}

/// A header frame: that of a run whose first message is not its `meta`.
fn header() -> Vec<u8> {
    let line =
        b"{\"type\":\"heartbeat\",\"v\":2,\"run_id\":\"r\",\"seq\":0,\"ts_usec\":0,\"samples\":0,\"batches\":0,\"dropped_messages\":0}\n";
    let mut frames = ToMsgpack::new(Vec::new());
    frames.write_all(line).expect("a message");
    let mut frames = frames.into_sink();
    let length = u32::from_be_bytes(frames[..4].try_into().expect("four bytes"));
    frames.truncate(4 + length as usize);
    frames
}

/// A trace ends, and every line of it is a message.
fn trace(input: &[u8]) {
    let Ok(trace) = LmcacheTrace::open(input) else { return };
    let mut trace = trace.run_id("r");
    let mut lines = Vec::new();
    trace.begin(&mut lines);
    loop {
        match trace.next_call(&mut lines) {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) => {
                assert_ne!(error.kind(), ErrorKind::Io);
                trace.lost(&mut lines, &error);
                if !trace.goes_on(&error) {
                    break;
                }
            }
        }
    }
    trace.end(&mut lines);
    assert_eq!(findings(&lines), [], "the stream of a trace is well-formed");
    let mut seq = 0;
    each_line(&lines, |_, line| {
        let decoded = decode(line, &mut RawColumns::default()).expect("a line of a trace is a message");
        assert_eq!(decoded.envelope.seq, Some(seq));
        seq += 1;
    });
}

// ---- CPython's own lines --------------------------------------------------------------------------------

/// What is made of CPython's own lines is a well-formed stream, complete only where nothing is lost.
pub fn upgrade(input: &[u8]) {
    let mut upgrade = Upgrade::default().max_line(limits::LINE_MIN);
    if try_each_line(input, |number, line| upgrade.line(number, line)).is_err() {
        return;
    }
    let Ok(losses) = upgrade.end() else { return };
    let mut stream = Vec::new();
    upgrade.write(&mut stream).expect("memory takes it");
    assert_eq!(findings(&stream), [], "an upgraded stream is well-formed");
    if losses.is_empty() {
        assert!(!tells_of_loss(&stream), "what is lost is told");
    }
    let _ = to_profile(&stream);
}
