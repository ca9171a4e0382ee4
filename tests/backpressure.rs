//! Readers of a live stream that are slow, late, or gone: what each of them gets and is told adds up.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::live::{Account, Running, framed, large_part, wait_until};
use common::{data, run};

/// Parts of a stream that is longer than what systems take for a reader who doesn't.
const PARTS: u64 = 40;

fn connect(address: &str) -> TcpStream {
    TcpStream::connect(address).expect("it listens")
}

/// Reads all that comes.
fn read_all(mut stream: TcpStream) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut got = Vec::new();
        stream.read_to_end(&mut got).expect("readable");
        got
    })
}

/// What a reader has so far.
struct Growing {
    got: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Growing {
    fn new(mut stream: TcpStream) -> Self {
        let got = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&got);
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let count = stream.read(&mut buffer).expect("readable");
                if count == 0 {
                    return;
                }
                to.lock().expect("no panic").extend_from_slice(&buffer[..count]);
            }
        });
        Growing { got, thread }
    }

    fn has_some(&self) -> bool {
        !self.got.lock().expect("no panic").is_empty()
    }

    fn contains(&self, what: &str) -> bool {
        let got = self.got.lock().expect("no panic");
        got.windows(what.len()).any(|part| part == what.as_bytes())
    }

    fn end(self) -> Vec<u8> {
        self.thread.join().expect("no panic");
        std::mem::take(&mut self.got.lock().expect("no panic"))
    }
}

/// Bytes of memory that the process had at most.
#[cfg(target_os = "linux")]
fn peak_memory(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("there");
    peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[test]
fn a_reader_that_stalls_holds_up_nobody_and_is_told_what_it_lost() {
    let mut program = Running::listening(&[
        "--buffer",
        "2m",
        "--wait-readers",
        "3",
        "--drop-policy",
        "oldest",
        "--stream-types",
        "raw,agg:1s,loss",
    ]);
    let address = program.address("tcp");
    let healthy = read_all(connect(&address));
    let stalled = connect(&address);
    let crawler = connect(&address);
    let (all_is_fed, is_over) = std::sync::mpsc::channel::<()>();
    let crawling = std::thread::spawn(move || {
        let (mut crawler, mut got) = (crawler, Vec::new());
        let mut buffer = vec![0; 16 * 1024];
        // A little at a time, and the rest once the stream is over.
        for _ in 0..200 {
            let count = crawler.read(&mut buffer).expect("readable");
            got.extend_from_slice(&buffer[..count]);
            std::thread::sleep(Duration::from_millis(5));
        }
        is_over.recv().expect("it will be");
        crawler.read_to_end(&mut got).expect("readable");
        got
    });
    let part = large_part();
    for _ in 0..PARTS {
        program.feed(&part);
    }
    #[cfg(target_os = "linux")]
    let peak = peak_memory(program.id());
    all_is_fed.send(()).expect("the reader waits");
    drop(program.stdin.take());
    // The healthy one has all, although the other one has not read a byte.
    let healthy = healthy.join().expect("no panic");
    let stalled = read_all(stalled).join().expect("no panic");
    let crawled = crawling.join().expect("no panic");
    let (code, _, said) = program.end();
    assert_eq!(code, Some(0), "{said}");

    let account = Account::of(&healthy);
    assert_eq!((account.received, account.produced), (PARTS * 52_000, Some(PARTS * 52_000)));
    assert!(account.lost.is_empty() && account.told.is_empty());
    for (name, got) in [("stalled", &stalled), ("crawled", &crawled)] {
        let account = Account::of(got);
        account.adds_up();
        assert_eq!(account.produced, Some(PARTS * 52_000), "{name}");
        assert!(account.lost_samples("backpressure") > 0, "{name}: {account:?}");
        // The losses are losses, and nothing is damaged.
        let back = run(&["to-bin", "-o", "/dev/null"], got);
        assert_eq!(back.code, 3);
        let others = back
            .stderr
            .lines()
            .filter(|line| !line.contains("reports a loss") && !line.contains("more faults"));
        assert_eq!(others.collect::<Vec<_>>(), Vec::<&str>::new());
    }
    #[cfg(target_os = "linux")]
    assert!(peak < 32 << 20, "{peak} bytes for a stream of 28 MB and two buffers of 2 MiB");
}

#[test]
#[cfg(unix)]
fn heartbeats_tell_a_reader_how_much_was_dropped_for_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("live.bin");
    let name = file.to_str().expect("UTF-8");
    let parts = large_part().repeat(20);
    let stream = run(&["from-bin", "--stream-types", "raw"], &parts).stdout;
    let made = run(&["to-bin", "--layout", "v2", "--flush", "samples:20000", "-o", name], &stream);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let program = Running::listening(&[
        "--follow",
        name,
        "--buffer",
        "64k",
        "--wait-readers",
        "1",
        "--stream-types",
        "raw,heartbeat:100ms",
    ]);
    let address = program.address("tcp");
    let ready = connect(&address);
    // It reads only once all is sent: heartbeats come at any time.
    std::thread::sleep(Duration::from_millis(200));
    let other = Growing::new(connect(&address));
    wait_until("the other one has a heartbeat", || other.contains("heartbeat"));
    let slow = Growing::new(ready);
    wait_until("it is told", || (1..=9).any(|digit| slow.contains(&format!("\"dropped_messages\":{digit}"))));
    program.signal("-TERM");
    let (code, _, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    let account = Account::of(&slow.end());
    account.adds_up();
    assert!(account.dropped_by_heartbeat > 0, "{account:?}");
    assert!(account.dropped_by_heartbeat <= account.lost["backpressure"].0);
}

/// <https://github.com/python/cpython/issues/145464>
#[test]
fn a_reader_that_comes_late_or_again_begins_with_a_batch_of_the_same_run() {
    let mut program = Running::listening(&["--stream-types", "raw,loss"]);
    let address = program.address("tcp");
    let first = connect(&address);
    let part = framed(&std::fs::read(data("cpython/tiny_script_none.bin")).expect("readable"));
    program.feed(&part);
    program.feed(&part);
    let mut got = Vec::new();
    let mut buffer = vec![0; 4096];
    let mut vanishing = first;
    // It vanishes in the middle of a line.
    while got.len() < 1000 {
        let count = vanishing.read(&mut buffer[..100]).expect("readable");
        got.extend_from_slice(&buffer[..count]);
    }
    // One that leaves at once is no reader, and the next would begin anew.
    std::thread::sleep(Duration::from_millis(300));
    program.feed(&part);
    program.feed(&part);
    std::thread::sleep(Duration::from_millis(500));
    drop(vanishing);
    // What is sent before they are let in, they miss.
    let again = Growing::new(connect(&address));
    wait_until("the one that comes again has something", || {
        program.feed(&part);
        again.has_some()
    });
    let late = Growing::new(connect(&address));
    wait_until("the late one has something", || {
        program.feed(&part);
        late.has_some()
    });
    let (code, _, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    let before = Account::of_part(&got);
    assert_eq!(before.first, ("meta".to_string(), 0));
    let mut missed = 0;
    for reader in [again, late] {
        let got = reader.end();
        let account = Account::of(&got);
        account.adds_up();
        assert_eq!(account.run_id, before.run_id);
        assert_eq!(account.first.0, "meta");
        assert!(account.first.1 > missed, "numbers tell what was missed");
        missed = account.first.1;
        assert_eq!(account.lost["gap"].0, missed);
        assert_eq!(run(&["to-bin", "-o", "/dev/null"], &got).code, 3);
    }
}

#[test]
fn a_reader_that_takes_nothing_is_cut_off_in_time() {
    let mut program = Running::listening(&["--buffer", "1m", "--stall-timeout", "500ms"]);
    let dead = connect(&program.address("tcp"));
    let part = large_part();
    for _ in 0..40 {
        program.feed(&part);
    }
    program.wait_for("took nothing for 500ms and was cut off");
    program.wait_for(&dead.local_addr().expect("bound").to_string());
    let (code, _, said) = program.end();
    assert_eq!(code, Some(3), "the stream waited for it, and it did not get all: {said}");
    assert!(said.contains("1 of 1 readers were cut off"), "{said}");
}

#[test]
fn with_block_a_slow_reader_gets_all() {
    let mut program =
        Running::listening(&["--buffer", "64k", "--drop-policy", "block", "--stream-types", "raw"]);
    let mut reader = connect(&program.address("tcp"));
    let part = large_part();
    let feeder = std::thread::spawn(move || {
        for _ in 0..20 {
            program.feed(&part);
        }
        program.end()
    });
    std::thread::sleep(Duration::from_millis(300));
    let mut got = Vec::new();
    reader.read_to_end(&mut got).expect("readable");
    let account = Account::of(&got);
    assert_eq!((account.received, account.lost.len()), (20 * 52_000, 0));
    assert_eq!(feeder.join().expect("no panic").0, Some(0));
}

#[test]
fn a_pipe_may_be_slow_too_where_that_is_asked_for() {
    let mut program =
        Running::start(&["from-bin", "--drop-policy", "oldest", "--buffer", "64k", "--stream-types", "raw"]);
    let mut pipe = program.stdout.take().expect("piped");
    let part = large_part();
    let begun = Instant::now();
    for _ in 0..10 {
        // Nobody reads, and it takes all.
        program.feed(&part);
    }
    drop(program.stdin.take());
    assert!(begun.elapsed() < Duration::from_secs(30));
    std::thread::sleep(Duration::from_millis(200));
    let mut got = Vec::new();
    pipe.read_to_end(&mut got).expect("readable");
    let account = Account::of(&got);
    account.adds_up();
    assert!(account.lost_samples("backpressure") > 0);
    let (code, _, said) = program.end();
    assert_eq!(code, Some(3), "what was asked for is not all there: {said}");
    assert!(said.contains("did not arrive"), "{said}");
}

#[test]
fn a_connection_that_breaks_is_made_again_and_goes_on_with_a_batch() {
    let server = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = server.local_addr().expect("bound");
    let target = format!("tcp:{address}");
    let mut program =
        Running::start(&["from-bin", "-o", &target, "--stream-types", "raw,loss", "--stall-timeout", "20s"]);
    let part = large_part();
    // More than systems take that nobody reads.
    for _ in 0..30 {
        program.feed(&part);
    }
    let (mut broken, _) = server.accept().expect("it connects");
    let mut start = vec![0; 100_000];
    broken.read_exact(&mut start).expect("readable");
    // What is on its way there is lost with it.
    drop(broken);
    let (second, _) = loop {
        program.feed(&part);
        server.set_nonblocking(true).expect("a socket");
        match server.accept() {
            Ok(accepted) => break accepted,
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    second.set_nonblocking(false).expect("a socket");
    let reader = read_all(second);
    program.feed(&part);
    let (code, _, said) = program.end();
    let got = reader.join().expect("no panic");
    let first = Account::of_part(&start);
    let account = Account::of_part(&got);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("the connection broke"), "{said}");
    assert_eq!((first.run_id, first.first), (account.run_id.clone(), ("meta".to_string(), 0)));
    let messages: Vec<&[u8]> = got.split_inclusive(|byte| *byte == b'\n').take(2).collect();
    let is_meta = |line: &[u8]| line.starts_with(b"{\"type\":\"meta\"");
    assert!(is_meta(messages[0]) || is_meta(messages[1]), "a batch begins");
    let gap = account.lost["gap"];
    assert_eq!(account.told["gap"], gap, "told before it, and in the end");
    // What the system had taken and not delivered is all that is not told; numbers show it.
    let produced = account.produced.expect("an end");
    assert!(account.received + gap.1 <= produced);
    assert!(account.received > 0 && gap.1 > 0);
}

#[test]
fn a_server_that_is_not_there_yet_is_waited_for() {
    let server = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = server.local_addr().expect("bound");
    drop(server);
    let target = format!("tcp:{address}");
    let mut program = Running::start(&["from-bin", "-o", &target]);
    program.feed(&framed(&std::fs::read(data("cpython/tiny_script_none.bin")).expect("readable")));
    program.wait_for("trying again");
    let server = TcpListener::bind(address).expect("still free");
    let (reader, _) = server.accept().expect("it connects");
    let reader = read_all(reader);
    let (code, _, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    Account::of(&reader.join().expect("no panic")).adds_up();
    // And given up on, if it never comes.
    let ran = run(
        &[
            "from-bin",
            data("cpython/tiny_script_none.bin").to_str().expect("UTF-8"),
            "-o",
            "tcp:127.0.0.1:1",
            "--stall-timeout",
            "300ms",
        ],
        b"",
    );
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("nobody answers at tcp:127.0.0.1:1"), "{}", ran.stderr);
}

#[test]
fn readers_talk_only_so_much_and_come_only_so_many() {
    let mut program = Running::listening(&["--max-readers", "2"]);
    let address = program.address("tcp");
    let mut talker = connect(&address);
    let quiet = connect(&address);
    // Each is let in on a thread of its own.
    std::thread::sleep(Duration::from_millis(500));
    wait_until("both are in", || {
        // A third is turned away once two are in.
        let mut third = connect(&address);
        third.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
        matches!(third.read(&mut [0]), Ok(0) | Err(_)) && program.said().contains("limit of readers")
    });
    let said = [b'x'; 200_000];
    let _ = talker.write_all(&said);
    let quiet = read_all(quiet);
    let part = large_part();
    program.feed(&part);
    program.feed(&part);
    let (code, _, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    Account::of(&quiet.join().expect("no panic")).adds_up();
    let mut rest = Vec::new();
    let _ = talker.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("\"type\":\"end\""), "cut off before");
}

#[test]
fn a_loss_accounts_for_the_hole_that_it_stands_in_and_for_no_other() {
    let path = data("cpython/wall_all_100hz_none.bin");
    let stream = common::stream_of(&path, &["--flush", "samples:60", "--max-line", "8k"]);
    let lines: Vec<&[u8]> = stream.split_inclusive(|byte| *byte == b'\n').collect();
    let with_loss = |first: usize| {
        let loss = format!(
            "{{\"type\":\"loss\",\"v\":2,\"run_id\":\"r\",\"seq\":5,\"reason\":\"backpressure\",\
             \"lost_messages\":{},\"first_seq\":{first},\"last_seq\":5}}\n",
            6 - first
        );
        [lines[..3].concat(), loss.into_bytes(), lines[6..].concat()].concat()
    };
    let said = |stream: &[u8]| {
        let checked = run(&["check"], stream);
        let back = run(&["to-bin", "-o", "/dev/null"], stream);
        assert_eq!(back.code, 3, "{}", back.stderr);
        (checked.code, String::from_utf8(checked.stdout).expect("UTF-8"), back.stderr)
    };
    let (code, found, back) = said(&with_loss(3));
    assert_eq!((code, found.as_str()), (0, ""));
    assert!(back.contains("reports a loss") && !back.contains("messages are missing before"), "{back}");
    // It tells of two, and three are missing.
    let (code, found, back) = said(&with_loss(4));
    assert_eq!(code, 1);
    assert!(found.contains("message 3 is missing before this one"), "{found}");
    assert!(back.contains("1 messages are missing before message 4"), "{back}");
}
