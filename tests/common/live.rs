//! A program that goes on while the test looks, and the accounts of what a reader of its stream got.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::consumer::{self, Message};
use super::{data, run, start};

/// How long anything may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until it is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A run of the program.
pub struct Running {
    child: Child,
    pub stdin: Option<ChildStdin>,
    pub stdout: Option<ChildStdout>,
    said: Arc<Mutex<String>>,
    listener: Option<JoinHandle<()>>,
}

impl Running {
    pub fn start(args: &[&str]) -> Self {
        let mut child = start(args);
        let said = Arc::new(Mutex::new(String::new()));
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe"));
        let to = Arc::clone(&said);
        let listener = std::thread::spawn(move || {
            let mut line = String::new();
            while lines.read_line(&mut line).expect("UTF-8") > 0 {
                to.lock().expect("no panic").push_str(&line);
                line.clear();
            }
        });
        Running {
            stdin: child.stdin.take(),
            stdout: child.stdout.take(),
            child,
            said,
            listener: Some(listener),
        }
    }

    /// A conversion that readers connect to.
    pub fn listening(options: &[&str]) -> Self {
        Running::start(&[&["from-bin", "-o", "tcp-listen:127.0.0.1:0"], options].concat())
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn said(&self) -> String {
        self.said.lock().expect("no panic").clone()
    }

    pub fn wait_for(&self, what: &str) {
        wait_until(&format!("{what} in {}", self.said()), || self.said().contains(what));
    }

    /// Where it listens, by this transport.
    pub fn address(&self, transport: &str) -> String {
        let start = format!("listening on {transport} ");
        self.wait_for(&start);
        let said = self.said();
        said.split(&start).nth(1).expect("waited for").lines().next().expect("a line").to_string()
    }

    /// Hands it something to read.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().expect("open").write_all(bytes).expect("it reads");
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits for its end: exit status (if no signal ended it), standard output, what it said.
    pub fn end(mut self) -> (Option<i32>, Vec<u8>, String) {
        drop(self.stdin.take());
        let mut output = Vec::new();
        if let Some(mut stdout) = self.stdout.take() {
            stdout.read_to_end(&mut output).expect("readable");
        }
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        };
        self.listener.take().expect("there").join().expect("no panic");
        let said = self.said();
        (status.code(), output, said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A profile as a part of a run that comes through a pipe: behind its length.
pub fn framed(profile: &[u8]) -> Vec<u8> {
    [&(profile.len() as u32).to_be_bytes()[..], profile].concat()
}

/// A part of about 700 kB as a stream, 52,000 samples.
pub fn large_part() -> Vec<u8> {
    framed(&std::fs::read(data("cpython/edge_over_write_buffer_none.bin")).expect("readable"))
}

/// What a reader of one run got and was told.
#[derive(Debug, Default)]
pub struct Account {
    pub run_id: String,
    pub first: (String, u64),
    pub received: u64,
    /// By loss messages: messages and samples.
    pub told: BTreeMap<String, (u64, u64)>,
    /// By the end, likewise.
    pub lost: BTreeMap<String, (u64, u64)>,
    pub produced: Option<u64>,
    pub dropped_by_heartbeat: u64,
}

impl Account {
    /// Reads what a reader got, holds it against the rules, and draws up its account.
    pub fn of(stream: &[u8]) -> Account {
        let checked = run(&["check"], stream);
        assert_eq!(checked.code, 0, "{}", String::from_utf8_lossy(&checked.stdout));
        Account::of_part(stream)
    }

    /// The same for a stream that broke off, whose last line may be a part of one.
    pub fn of_part(stream: &[u8]) -> Account {
        let whole = stream.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        // Reads every sample, so that each id has to be defined in its batch.
        let read = consumer::read(&stream[..whole]);
        let mut account = Account::default();
        let mut last: Option<u64> = None;
        for (line, message) in stream[..whole].split_inclusive(|byte| *byte == b'\n').zip(&read.messages) {
            let value: serde_json::Value = serde_json::from_slice(line).expect("JSON");
            let seq = value["seq"].as_u64().expect("a number");
            assert!(last.is_none_or(|last| seq > last), "numbers rise");
            if last.is_none() {
                account.first = (value["type"].as_str().expect("a type").to_string(), seq);
                account.run_id = value["run_id"].as_str().expect("an id").to_string();
            }
            assert_eq!(value["run_id"], *account.run_id);
            match message {
                Message::Raw { samples, .. } => account.received += samples,
                Message::Loss { reason, lost_messages, lost_samples, first_seq, last_seq, .. } => {
                    if let (Some(first), Some(end)) = (first_seq, last_seq) {
                        assert_eq!(*end, seq, "it has the number of the last that is lost");
                        assert!(last.is_none_or(|last| last + 1 == *first), "no hole is untold");
                        assert_eq!(*lost_messages, Some(end - first + 1));
                    }
                    let told = account.told.entry(reason.clone()).or_default();
                    told.0 += lost_messages.unwrap_or(0);
                    told.1 += lost_samples.unwrap_or(0);
                }
                Message::Heartbeat { dropped_messages, .. } => {
                    account.dropped_by_heartbeat = *dropped_messages
                }
                Message::End { samples, lost, .. } => {
                    account.produced = Some(*samples);
                    for (reason, amounts) in lost.iter().flatten() {
                        let amount = |key: &str| amounts.get(key).map_or(0, |amount| *amount as u64);
                        let lost = (amount("lost_messages"), amount("lost_samples"));
                        account.lost.insert(reason.clone(), lost);
                    }
                }
                _ => {}
            }
            if let Some(last) = last
                && !matches!(message, Message::Loss { first_seq: Some(_), .. })
            {
                assert_eq!(seq, last + 1, "every hole is told");
            }
            last = Some(seq);
        }
        account
    }

    /// Samples that are lost for a reason, by the end.
    pub fn lost_samples(&self, reason: &str) -> u64 {
        self.lost.get(reason).map_or(0, |(_, samples)| *samples)
    }

    /// What came and what is told as lost is what was made, and the end says the same as the loss messages.
    pub fn adds_up(&self) {
        let lost = self.lost_samples("backpressure") + self.lost_samples("gap");
        assert_eq!(Some(self.received + lost), self.produced, "{self:?}");
        assert_eq!(self.told.get("backpressure"), self.lost.get("backpressure"), "{self:?}");
    }
}
