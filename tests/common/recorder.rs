//! A recorder whose profiler is a stand-in that hands over what a real one once did.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::consumer::{self, Message};
pub use super::profile;
use super::{PROGRAM, messages, run, stream_of};

pub const PATIENCE: Duration = Duration::from_secs(30);

/// The parts of a recording as a profiler would hand them over, and the raw lines of the whole.
pub struct Parts {
    pub folder: tempfile::TempDir,
    pub count: usize,
    pub samples: u64,
}

/// Made once: each batch of a real profile as a profile of its own.
pub fn parts() -> &'static Parts {
    static PARTS: OnceLock<Parts> = OnceLock::new();
    PARTS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let stream = stream_of(&profile(), &["--flush", "interval:100ms", "--stream-types", "raw"]);
        let text = String::from_utf8(stream).expect("UTF-8");
        let lines: Vec<&str> = text.lines().filter(|line| !line.contains("\"type\":\"end\"")).collect();
        let batches = lines.chunk_by(|_, next| !next.contains("\"type\":\"meta\""));
        let mut count = 0;
        for batch in batches {
            let ran = run(&["-q", "to-bin"], (batch.join("\n") + "\n").as_bytes());
            assert!(matches!(ran.code, 0 | 3), "{}", ran.stderr);
            fs::write(folder.path().join(format!("{count}.bin")), ran.stdout).expect("writable");
            count += 1;
        }
        let samples = consumer::read(text.as_bytes()).messages.iter().map(samples_of).sum();
        assert!(count >= 8, "{count} parts");
        Parts { folder, count, samples }
    })
}

pub fn samples_of(message: &Message) -> u64 {
    if let Message::Raw { samples, .. } = message { *samples } else { 0 }
}

pub fn python() -> PathBuf {
    static PYTHON: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PYTHON.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("python3.15");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/fake_python.py");
        fs::write(&path, format!("#!/bin/sh\nexec python3 '{}' \"$@\"\n", script.display()))
            .expect("writable");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("its mode");
        (folder, path)
    });
    path.clone()
}

pub fn command(options: &[&str], actions: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["record", "--python"]).arg(python()).args(options).args(["--", "run"]);
    command.args(actions.split_whitespace()).env("PARTS", parts().folder.path());
    command
}

/// Exit status, standard output, standard error.
pub fn record(options: &[&str], actions: &str) -> (i32, Vec<u8>, String) {
    let output = command(options, actions).output().expect("the program runs");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    (output.status.code().expect("no signal"), output.stdout, said)
}

/// A recording that goes on.
pub struct Recorder {
    pub child: Child,
}

impl Recorder {
    pub fn start(options: &[&str], actions: &str) -> Self {
        let mut command = command(options, actions);
        Recorder { child: command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts") }
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits for its end. Exit status, or `None` after a signal, and what it said.
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("UTF-8");
        (self.child.wait().expect("it ends").code(), said)
    }
}

/// A test that fails leaves nobody behind: the stand-in ends when it has nobody to talk to.
impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a stream in a file has so many of `what`.
pub fn wait_for_count(path: &Path, what: &str, count: usize) {
    let has = || fs::read_to_string(path).unwrap_or_default().matches(what).count() >= count;
    wait_for(&format!("{count} {what}"), || has().then_some(()));
}

pub const META: &str = "\"type\":\"meta\"";
pub const HEARTBEAT: &str = "\"type\":\"heartbeat\"";

/// The messages of a sound stream.
pub fn sound(stream: &[u8]) -> Vec<Value> {
    let checked = run(&["check"], stream);
    assert_eq!(checked.code, 0, "{}", String::from_utf8_lossy(&checked.stdout));
    messages(stream)
}

pub fn parse(line: &[u8]) -> Value {
    serde_json::from_slice(line).expect("JSON")
}

pub fn of_type<'a>(messages: &'a [Value], name: &str) -> Vec<&'a Value> {
    messages.iter().filter(|message| message["type"] == name).collect()
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The raw messages, but for what tells runs apart.
pub fn raw(messages: &[Value]) -> Vec<Value> {
    let bare = |message: &&Value| {
        let mut message = (*message).clone();
        for key in ["run_id", "seq", "batch"] {
            message.as_object_mut().expect("an object").remove(key);
        }
        message
    };
    of_type(messages, "raw").iter().map(bare).collect()
}

pub fn path_in(folder: &tempfile::TempDir, name: &str) -> (PathBuf, String) {
    let path = folder.path().join(name);
    let text = path.to_str().expect("UTF-8").to_string();
    (path, text)
}
