//! Every command that writes to a target, and what a run of it came to, within a bounded time.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::recorder::{self, Recorder, wait_for};
use super::{PROGRAM, data, profile_of, run, stream_of};

/// What no command takes, whatever stands in its way.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a command that ends by a signal has for its work, and one that waits is seen to wait.
const WORK: Duration = Duration::from_millis(1500);

/// A command that writes to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    FromBin,
    Follow,
    Packed,
    ToBin,
    ToChunks,
    Recover,
    Upgrade,
    RecordStream,
    RecordProfile,
    Snapshot,
}

pub const WRITERS: [Writer; 10] = [
    Writer::FromBin,
    Writer::Follow,
    Writer::Packed,
    Writer::ToBin,
    Writer::ToChunks,
    Writer::Recover,
    Writer::Upgrade,
    Writer::RecordStream,
    Writer::RecordProfile,
    Writer::Snapshot,
];

/// What became of a run.
#[derive(Debug)]
pub struct Outcome {
    /// `None` after a signal.
    pub code: Option<i32>,
    pub said: String,
}

/// Inputs of all commands, made once.
pub struct Inputs {
    pub profile: PathBuf,
    pub stream: PathBuf,
    pub chunks: PathBuf,
    pub cpython: PathBuf,
}

pub fn inputs() -> &'static Inputs {
    static INPUTS: OnceLock<(tempfile::TempDir, Inputs)> = OnceLock::new();
    let (_, inputs) = INPUTS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = data("cpython/wall_all_100hz_none.bin");
        let stream = stream_of(&profile, &["--flush", "samples:60"]);
        let chunks = profile_of(&stream, &["--layout", "v2", "--flush", "samples:300"]);
        let inputs = Inputs {
            profile,
            stream: folder.path().join("in.jsonl"),
            chunks: folder.path().join("in.bin"),
            cpython: data("cases/cpython_v0.jsonl"),
        };
        fs::write(&inputs.stream, stream).expect("writable");
        fs::write(&inputs.chunks, chunks).expect("writable");
        (folder, inputs)
    });
    inputs
}

/// A command at work.
pub struct Running {
    writer: Writer,
    pub child: Child,
    /// Of a snapshot.
    recorder: Option<(Recorder, tempfile::TempDir)>,
}

impl Writer {
    /// The ending of the names that it writes to.
    pub fn ending(self) -> &'static str {
        match self {
            Writer::Packed => "jsonl.zst",
            Writer::FromBin | Writer::Follow | Writer::Upgrade | Writer::RecordStream => "jsonl",
            Writer::ToBin | Writer::ToChunks | Writer::Recover => "bin",
            Writer::RecordProfile | Writer::Snapshot => "bin",
        }
    }

    /// Starts it, with its standard output as given.
    pub fn start(self, target: &str, output: Stdio) -> Running {
        self.start_with(target, &[], output)
    }

    /// The same, with more options.
    pub fn start_with(self, target: &str, options: &[&str], output: Stdio) -> Running {
        let options = [&["-o", target], options].concat();
        let inputs = inputs();
        let text = |path: &Path| path.to_str().expect("UTF-8").to_string();
        let (profile, stream, chunks) = (text(&inputs.profile), text(&inputs.stream), text(&inputs.chunks));
        let mut recorder = None;
        let arguments: Vec<String> = match self {
            Writer::FromBin | Writer::Packed => vec!["from-bin".into(), profile],
            Writer::Follow => vec!["from-bin".into(), "--follow".into(), chunks],
            Writer::ToBin => vec!["to-bin".into(), stream],
            Writer::ToChunks => {
                ["to-bin", &stream, "--layout", "v2", "--flush", "samples:300"].map(String::from).to_vec()
            }
            Writer::Recover => vec!["recover".into(), profile],
            Writer::Upgrade => vec!["upgrade".into(), text(&inputs.cpython)],
            Writer::Snapshot => {
                let (control, guard) = ring();
                recorder = Some(guard);
                vec!["snapshot".into(), "--control".into(), control]
            }
            Writer::RecordStream | Writer::RecordProfile => Vec::new(),
        };
        let mut command = match self {
            Writer::RecordStream | Writer::RecordProfile => {
                recorder::command(&options, "begin part:0 part:1 part:2 end")
            }
            _ => {
                let mut command = Command::new(PROGRAM);
                command.args(arguments).args(options);
                command
            }
        };
        command.stdin(Stdio::null()).stdout(output).stderr(Stdio::piped());
        Running { writer: self, child: command.spawn().expect("it starts"), recorder }
    }

    /// Runs it to its end.
    pub fn write_to(self, target: &str) -> Outcome {
        self.start(target, Stdio::null()).end()
    }

    /// Whether these bytes are all that it writes.
    pub fn is_whole(self, bytes: &[u8]) -> bool {
        let is_profile = bytes.starts_with(b"HCAT") || bytes.starts_with(b"TACH");
        if self.ending() == "bin" {
            let mut file = tempfile::NamedTempFile::new().expect("a file");
            file.write_all(bytes).expect("writable");
            let ran = run(&["inspect", "--verify", "--json", file.path().to_str().expect("UTF-8")], b"");
            return is_profile && ran.code == 0;
        }
        let text = if self == Writer::Packed {
            let Ok(text) = zstd::decode_all(bytes) else { return false };
            text
        } else {
            bytes.to_vec()
        };
        let has_end = text.windows(13).any(|part| part == b"\"type\":\"end\",".as_slice());
        has_end && run(&["check"], &text).code == 0
    }
}

/// A recorder with a ring in which there is something, and where it listens.
fn ring() -> (String, (Recorder, tempfile::TempDir)) {
    let folder = tempfile::tempdir().expect("a folder");
    let control = format!("unix:{}", folder.path().join("control").display());
    let recorder = Recorder::start(&["--ring", "30s", "--control", &control], "begin part:0 part:1 wait end");
    wait_for("a chunk in the ring", || {
        let socket = std::os::unix::net::UnixStream::connect(folder.path().join("control")).ok()?;
        writeln!(&socket, "status").ok()?;
        let mut answer = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(&socket), &mut answer).ok()?;
        answer.contains("\"gone_chunks\":0").then_some(())?;
        answer.contains("\"chunks\":2").then_some(())
    });
    (control, (recorder, folder))
}

impl Running {
    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Whether it has ended by itself within a while.
    pub fn ends_within(&mut self, time: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < time {
            if self.child.try_wait().expect("it can be asked").is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Its end, which comes in a bounded time; one that follows is asked to end once it had time.
    pub fn end(mut self) -> Outcome {
        if self.writer == Writer::Follow && !self.ends_within(WORK) {
            self.signal("-TERM");
        }
        let has_ended = self.ends_within(PATIENCE);
        if !has_ended {
            let _ = self.child.kill();
        }
        let mut said = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("UTF-8");
        assert!(has_ended, "{:?} hangs: {said}", self.writer);
        if let Some((recorder, _folder)) = self.recorder.take() {
            // Whatever was asked of it, it goes on and ends when it is told to.
            recorder.signal("-INT");
            assert_eq!(recorder.end().0, Some(0), "{:?}", self.writer);
        }
        Outcome { code: self.child.wait().expect("it ends").code(), said }
    }
}
