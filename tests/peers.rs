//! A model of the peers that a socket may have, on each kind of listener and outgoing target, for each command
//! that has them: what arrives is all or accounted for, the next one is let in, and the exit status tells.
#![cfg(unix)]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::live::{Account, Running, framed, large_part, wait_until};
use common::recorder::{self, Recorder};
use common::{PROGRAM, data, folder, profile, run, stream_of, text};

const KINDS: [&str; 3] = ["tcp", "unix", "ws"];
const HANDSHAKE: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// Files to work on: a stream, and the same as chunks that say of which run they are.
struct Inputs {
    folder: tempfile::TempDir,
    stream: Vec<u8>,
}

impl Inputs {
    fn new() -> Self {
        let folder = folder();
        let stream = stream_of(&profile(), &["--stream-types", "raw,loss", "--flush", "samples:100"]);
        std::fs::write(folder.path().join("s.jsonl"), &stream).expect("written");
        let made = run(&["to-bin", "--layout", "v2", "--flush", "samples:100"], &stream);
        assert_eq!(made.code, 0, "{}", made.stderr);
        std::fs::write(folder.path().join("c.bin"), made.stdout).expect("written");
        Inputs { folder, stream }
    }

    fn path(&self, name: &str) -> String {
        text(&self.folder.path().join(name)).to_string()
    }

    fn chunks(&self) -> Vec<u8> {
        std::fs::read(self.path("c.bin")).expect("readable")
    }

    /// The commands that send, and what each sends.
    fn senders(&self) -> Vec<(Vec<String>, Vec<u8>)> {
        let (stream, chunks) = (self.path("s.jsonl"), self.path("c.bin"));
        let commands: [&[&str]; 6] = [
            &["from-bin", &chunks],
            &["from-bin", &chunks, "--format", "msgpack"],
            &["from-bin", &chunks, "--binary"],
            &["to-bin", &stream],
            &["to-bin", &stream, "--format", "binary"],
            &["recover", &chunks],
        ];
        let sent = |command: &[&str]| {
            let ran = run(command, b"");
            assert_eq!(ran.code, 0, "{}", ran.stderr);
            (command.iter().map(|arg| arg.to_string()).collect(), ran.stdout)
        };
        commands.into_iter().map(sent).collect()
    }
}

/// Somebody at the other end.
enum Peer {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Peer {
    /// Connects, and no more.
    fn knock(kind: &str, address: &str) -> Peer {
        match kind {
            "unix" => Peer::Unix(UnixStream::connect(address).expect("it listens")),
            _ => Peer::Tcp(TcpStream::connect(address).expect("it listens")),
        }
    }

    /// Connects as a reader does.
    fn reader(kind: &str, address: &str) -> Peer {
        let mut peer = Peer::knock(kind, address);
        if kind == "ws" {
            peer.say(HANDSHAKE);
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") {
                peer.read_exactly(&mut byte);
                head.push(byte[0]);
            }
            assert!(head.starts_with(b"HTTP/1.1 101 "));
        }
        peer
    }

    fn say(&mut self, bytes: &[u8]) {
        let said = match self {
            Peer::Tcp(socket) => socket.write_all(bytes),
            Peer::Unix(socket) => socket.write_all(bytes),
        };
        said.expect("it listens");
    }

    fn read_exactly(&mut self, buffer: &mut [u8]) {
        let read = match self {
            Peer::Tcp(socket) => socket.read_exact(buffer),
            Peer::Unix(socket) => socket.read_exact(buffer),
        };
        read.expect("readable");
    }

    fn half_close(&self) {
        match self {
            Peer::Tcp(socket) => socket.shutdown(Shutdown::Write),
            Peer::Unix(socket) => socket.shutdown(Shutdown::Write),
        }
        .expect("open");
    }

    /// All that comes, out of its frames.
    fn rest(mut self, kind: &str) -> Vec<u8> {
        let mut got = Vec::new();
        let read = match &mut self {
            Peer::Tcp(socket) => socket.read_to_end(&mut got),
            Peer::Unix(socket) => socket.read_to_end(&mut got),
        };
        read.expect("readable");
        if kind == "ws" { unframed(&got) } else { got }
    }
}

/// What frames of text (as lines) and of bytes hold; the last one has to be a close with a status.
fn unframed(mut frames: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut closed = None;
    while let [kind, length, rest @ ..] = frames {
        assert!(closed.is_none() && length & 0x80 == 0, "a server does not mask, and ends with the close");
        let (length, rest) = match length {
            126 => (usize::from(u16::from_be_bytes([rest[0], rest[1]])), &rest[2..]),
            127 => (u64::from_be_bytes(rest[..8].try_into().expect("eight")) as usize, &rest[8..]),
            length => (usize::from(*length), rest),
        };
        let (payload, rest) = rest.split_at(length);
        match kind {
            0x81 => all.extend([payload, b"\n"].concat()),
            0x82 => all.extend(payload),
            0x88 => closed = Some(u16::from_be_bytes([payload[0], payload[1]])),
            other => panic!("a frame of kind {other:#x}"),
        }
        frames = rest;
    }
    assert_eq!(closed, Some(1000), "a close says that all is well");
    all
}

/// An address that listens.
fn listener(kind: &str, folder: &tempfile::TempDir) -> String {
    match kind {
        "unix" => format!("unix-listen:{}", text(&folder.path().join("socket"))),
        _ => format!("{kind}-listen:0"),
    }
}

fn strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

#[test]
fn probes_are_no_readers_and_the_next_one_gets_all() {
    let inputs = Inputs::new();
    for kind in KINDS {
        for (command, sent) in inputs.senders() {
            let folder = folder();
            let target = listener(kind, &folder);
            let program = Running::start(&[strs(&command).as_slice(), &["-o", &target]].concat());
            let address = program.address(kind);
            for _ in 0..70 {
                drop(Peer::knock(kind, &address));
            }
            if kind != "ws" {
                std::thread::sleep(Duration::from_millis(50));
            }
            let got = Peer::reader(kind, &address).rest(kind);
            let (code, _, said) = program.end();
            assert_eq!(code, Some(0), "{kind} {command:?}: {said}");
            if command.iter().any(|arg| arg == "msgpack") {
                // A header stands ahead of every batch.
                let checked = run(&["check"], &got);
                assert_eq!(checked.code, 0, "{}", String::from_utf8_lossy(&checked.stdout));
            } else {
                assert!(got == sent, "{kind} {command:?}: {} bytes of {}", got.len(), sent.len());
            }
            assert!(said.lines().count() < 8, "{said}");
        }
    }
}

#[test]
fn a_reader_that_says_nothing_more_still_gets_all() {
    let input = profile();
    for kind in ["tcp", "unix"] {
        let folder = folder();
        let program =
            Running::start(&["from-bin", text(&input), "--run-id", "r", "-o", &listener(kind, &folder)]);
        let reader = Peer::knock(kind, &program.address(kind));
        reader.half_close();
        let got = reader.rest(kind);
        assert_eq!(program.end().0, Some(0));
        assert!(got == stream_of(&input, &[]));
    }
}

#[test]
fn those_that_have_gone_hold_no_place_while_nothing_is_sent() {
    for kind in KINDS {
        let folder = folder();
        let file = folder.path().join("live.bin");
        let target = listener(kind, &folder);
        let program =
            Running::start(&["from-bin", "--follow", text(&file), "-o", &target, "--max-readers", "2"]);
        let address = program.address(kind);
        for _ in 0..10 {
            drop(Peer::reader(kind, &address));
        }
        std::thread::sleep(Duration::from_millis(200));
        let reader = Peer::reader(kind, &address);
        std::thread::sleep(Duration::from_millis(100));
        std::fs::write(&file, Inputs::new().chunks()).expect("written");
        let began = std::thread::spawn(move || reader.rest(kind));
        std::thread::sleep(Duration::from_millis(1500));
        program.signal("-TERM");
        let (code, _, said) = program.end();
        assert_eq!(code, Some(0), "{kind}: {said}");
        Account::of(&began.join().expect("no panic")).adds_up();
    }
}

#[test]
fn a_conversion_that_nobody_has_got_says_so() {
    let mut program = Running::start(&["from-bin", "-o", "tcp-listen:0"]);
    let mut early = TcpStream::connect(program.address("tcp")).expect("it listens");
    for _ in 0..20 {
        program.feed(&large_part());
    }
    // It leaves in the middle.
    early.read_exact(&mut [0; 100_000]).expect("readable");
    std::thread::sleep(Duration::from_millis(300));
    drop(early);
    let (code, _, said) = program.end();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("none of 1 that connected received everything"), "{said}");
}

#[test]
fn a_reader_that_holds_up_a_conversion_is_cut_off_and_it_says_so() {
    let mut program =
        Running::listening(&["--buffer", "64k", "--stall-timeout", "300ms", "--wait-readers", "2"]);
    let address = program.address("tcp");
    let stalled = TcpStream::connect(&address).expect("it listens");
    let mut healthy = TcpStream::connect(&address).expect("it listens");
    let healthy = std::thread::spawn(move || {
        let mut got = Vec::new();
        healthy.read_to_end(&mut got).map(|_| got).expect("readable")
    });
    for _ in 0..12 {
        program.feed(&large_part());
    }
    let (code, _, said) = program.end();
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("1 of 2 readers were cut off"), "{said}");
    let account = Account::of(&healthy.join().expect("no panic"));
    assert_eq!((account.received, account.lost.len()), (12 * 52_000, 0));
    drop(stalled);
}

#[test]
fn a_fast_reader_gets_a_batch_that_is_larger_than_its_queue() {
    let mut program =
        Running::listening(&["--buffer", "64k", "--drop-policy", "oldest", "--stream-types", "raw"]);
    let mut reader = TcpStream::connect(program.address("tcp")).expect("it listens");
    let part = large_part();
    program.feed(&part);
    // A batch is over once the next part comes.
    let feeder = std::thread::spawn(move || program.end());
    let mut got = Vec::new();
    reader.read_to_end(&mut got).expect("readable");
    let account = Account::of(&got);
    assert_eq!((account.received, account.lost.len()), (52_000, 0));
    assert_eq!(feeder.join().expect("no panic").0, Some(0));
}

#[test]
fn who_hangs_up_on_a_sender_has_not_got_it() {
    let inputs = Inputs::new();
    for (command, _) in inputs.senders() {
        let server = TcpListener::bind("127.0.0.1:0").expect("bound");
        let target = format!("tcp:{}", server.local_addr().expect("bound"));
        let program = Running::start(
            &[strs(&command).as_slice(), &["-o", &target, "--stall-timeout", "500ms"]].concat(),
        );
        drop(server.accept().expect("it connects"));
        drop(server);
        let (code, _, said) = program.end();
        assert_eq!(code, Some(3), "{command:?}: {said}");
        assert!(!said.contains("are saved"), "{said}");
    }
}

#[test]
fn a_connection_that_breaks_before_the_end_is_never_a_success() {
    // It has all but the end, and comes again for that.
    let server = TcpListener::bind("127.0.0.1:0").expect("bound");
    let target = format!("tcp:{}", server.local_addr().expect("bound"));
    let mut program = Running::start(&["from-bin", "-o", &target, "--stall-timeout", "5s"]);
    let part = framed(&std::fs::read(data("cpython/tiny_script_none.bin")).expect("readable"));
    program.feed(&part);
    program.feed(&part);
    let (mut first, _) = server.accept().expect("it connects");
    first.read_exact(&mut [0; 1000]).expect("readable");
    std::thread::sleep(Duration::from_millis(300));
    drop(first);
    let accepted = std::thread::spawn(move || {
        let (mut second, _) = server.accept().expect("it connects again");
        let mut got = Vec::new();
        second.read_to_end(&mut got).map(|_| got).expect("readable")
    });
    program.wait_for("connecting again");
    let (code, _, said) = program.end();
    assert_eq!(code, Some(3), "{said}");
    assert!(accepted.join().expect("no panic").ends_with(b"}\n"));
}

#[test]
fn where_nobody_listens_every_sender_waits_as_long_and_says_so() {
    let inputs = Inputs::new();
    for (command, _) in inputs.senders() {
        let begun = Instant::now();
        let args =
            [strs(&command).as_slice(), &["-o", "tcp:127.0.0.1:1", "--stall-timeout", "300ms"]].concat();
        let ran = run(&args, b"");
        assert_eq!(ran.code, 1, "{command:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("nobody answers at tcp:127.0.0.1:1"), "{}", ran.stderr);
        assert!(begun.elapsed() >= Duration::from_millis(300));
    }
}

/// Sends a part of some bytes to an address and resets the connection, with Python for want of a means here.
fn send_and_reset(address: &str, bytes: &[u8]) {
    let script = "import socket, struct, sys, time\n\
        host, port = sys.argv[1].rsplit(':', 1)\n\
        peer = socket.create_connection((host, int(port)))\n\
        peer.sendall(sys.stdin.buffer.read())\n\
        time.sleep(0.3)\n\
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n\
        peer.close()\n";
    let mut child =
        Command::new("python3").args(["-c", script, address]).stdin(Stdio::piped()).spawn().expect("python3");
    child.stdin.take().expect("a pipe").write_all(bytes).expect("it reads");
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn what_came_before_a_reset_is_kept_by_every_command_that_reads() {
    let inputs = Inputs::new();
    let chunks = inputs.chunks();
    // Five whole chunks: nothing else tells that more was to come.
    let starts: Vec<usize> =
        chunks.windows(8).enumerate().filter(|(_, at)| *at == b"HCAT\x02\0\0\0").map(|(at, _)| at).collect();
    let five = &chunks[..starts[5]];
    let other = inputs.path("c.bin");
    let file = inputs.path("out");
    let commands: [&[&str]; 5] = [
        &["from-bin", "INPUT"],
        &["from-bin", "INPUT", "-o", &file],
        &["inspect", "INPUT"],
        &["recover", "INPUT", "-o", &file],
        &["diff", &other, "INPUT"],
    ];
    for command in commands {
        let _ = std::fs::remove_file(&file);
        let args: Vec<&str> =
            command.iter().map(|arg| if *arg == "INPUT" { "tcp-listen:0" } else { arg }).collect();
        let program = Running::start(&args);
        send_and_reset(&program.address("tcp"), five);
        let (code, output, said) = program.end();
        assert_eq!(code, Some(3), "{command:?}: {said}");
        assert!(said.contains("reset"), "{said}");
        let output = std::fs::read(&file).unwrap_or(output);
        match command[0] {
            "from-bin" => {
                let text = String::from_utf8(output).expect("UTF-8");
                let account = Account::of_part(text.as_bytes());
                assert_eq!(account.produced, Some(account.received));
                assert!(account.received >= 500, "{account:?}");
                assert!(text.contains("\"code\":\"io\"") && text.contains("\"complete\":false"), "{text}");
            }
            "recover" => assert!(output == five),
            _ => assert!(!output.is_empty()),
        }
    }
    let lines = &inputs.stream[..inputs.stream.len() / 2];
    for (command, expected) in [("to-bin", 3), ("inspect", 3), ("check", 1)] {
        let program = Running::start(&[command, "tcp-listen:0"]);
        send_and_reset(&program.address("tcp"), lines);
        let (code, output, said) = program.end();
        assert_eq!(
            (code, command == "check" || !output.is_empty()),
            (Some(expected), true),
            "{command}: {said}"
        );
        assert!(said.contains("reset"), "{said}");
    }
}

#[test]
fn of_those_that_connect_the_first_that_sends_something_is_the_input() {
    let inputs = Inputs::new();
    for kind in ["tcp", "unix"] {
        let folder = folder();
        let program = Running::start(&["from-bin", &listener(kind, &folder)]);
        let address = program.address(kind);
        let _silent = Peer::knock(kind, &address);
        drop(Peer::knock(kind, &address));
        let mut sender = Peer::knock(kind, &address);
        sender.say(&inputs.chunks());
        drop(sender);
        let (code, output, said) = program.end();
        assert_eq!(code, Some(0), "{said}");
        Account::of(&output).adds_up();
    }
}

#[test]
fn silent_connections_keep_nobody_out_and_do_not_fill_the_log() {
    let input = profile();
    let program = Running::start(&["from-bin", text(&input), "-o", "tcp-listen:0", "--token", "s3cret"]);
    let address = program.address("tcp");
    let silent: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    // A token that merely begins right, or ends too late, is refused.
    for wrong in ["TOKEN s3cre\n", "TOKEN s3crets\n", "TOKEN s3cret \n", "TOKEN  s3cret\n", "TOKEN \n"] {
        let mut peer = TcpStream::connect(&address).expect("it listens");
        peer.write_all(wrong.as_bytes()).expect("it reads");
        let mut got = Vec::new();
        let _ = peer.read_to_end(&mut got);
        assert_eq!(got.len(), 0, "{wrong:?}");
    }
    let mut reader = TcpStream::connect(&address).expect("it listens");
    reader.write_all(b"TOKEN s3cret\n").expect("it reads");
    let mut got = Vec::new();
    reader.read_to_end(&mut got).expect("readable");
    Account::of(&got).adds_up();
    drop(silent);
    let (code, _, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.lines().count() < 20, "{} lines: {said}", said.lines().count());
}

#[test]
fn a_request_that_asks_for_no_web_socket_is_answered_in_its_own_words() {
    let folder = folder();
    let program =
        Running::start(&["from-bin", "--follow", text(&folder.path().join("x")), "-o", "ws-listen:0"]);
    let address = program.address("ws");
    let handshake = String::from_utf8_lossy(HANDSHAKE).into_owned();
    for (request, status, has_text) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_string(), "426", true),
        ("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n".to_string(), "426", false),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx".to_string(), "405", true),
        (handshake.replace("Version: 13", "Version: 8"), "426", true),
        (handshake.replace("Sec-WebSocket-Key", "Key"), "400", true),
        ("no request\r\n\r\n".to_string(), "400", true),
    ] {
        let mut peer = TcpStream::connect(&address).expect("it listens");
        peer.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        peer.read_to_string(&mut answer).expect("an answer, and an end");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        assert!(answer.contains("Sec-WebSocket-Version: 13\r\n"), "{answer}");
        assert_eq!(!answer.ends_with("\r\n\r\n"), has_text, "{answer}");
    }
    program.signal("-TERM");
    program.end();
}

#[test]
#[cfg(target_os = "linux")]
fn frames_without_an_end_and_without_anything_in_them_cost_nothing() {
    let folder = folder();
    let program =
        Running::start(&["from-bin", "--follow", text(&folder.path().join("x")), "-o", "ws-listen:0"]);
    let address = program.address("ws");
    let mut peers = Vec::new();
    for _ in 0..8 {
        let Peer::Tcp(mut peer) = Peer::reader("ws", &address) else { panic!("a web socket") };
        peer.write_all(&[0x82, 0xff, 0, 0, 0, 0, 0x03, 0xf0, 0, 0, 1, 2, 3, 4]).expect("it reads");
        peer.set_write_timeout(Some(Duration::from_secs(5))).expect("a socket");
        // 1 MiB is enough to see whether it is kept, and it may hang up before.
        let _ = peer.write_all(&vec![7; 1 << 20]);
        peers.push(peer);
    }
    let Peer::Tcp(mut empty) = Peer::reader("ws", &address) else { panic!("a web socket") };
    empty.write_all(&[0x02, 0x80, 1, 2, 3, 4]).expect("it reads");
    let many = [0x00, 0x80, 1, 2, 3, 4].repeat(50_000);
    let _ = empty.write_all(&many);
    wait_until("both kinds are cut off", || program.said().matches("says too much").count() >= 9);
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.id())).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("there");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak < 64 * 1024, "{peak} kB");
    program.signal("-TERM");
    program.end();
}

#[test]
fn a_second_start_on_the_same_socket_is_refused_and_the_first_does_not_notice() {
    let inputs = Inputs::new();
    for (command, sent) in
        inputs.senders().into_iter().filter(|(command, _)| !command.contains(&"msgpack".to_string()))
    {
        let folder = folder();
        let target = listener("unix", &folder);
        let args = [strs(&command).as_slice(), &["-o", &target]].concat();
        let first = Running::start(&args);
        let address = first.address("unix");
        let second = run(&args, b"");
        assert_eq!(second.code, 1, "{}", second.stderr);
        assert!(second.stderr.contains("another process listens on"), "{}", second.stderr);
        let got = Peer::reader("unix", &address).rest("unix");
        assert_eq!(first.end().0, Some(0));
        assert!(got == sent);
    }
}

#[test]
fn a_late_reader_of_a_quiet_stream_hears_that_it_lives() {
    let folder = folder();
    let file = folder.path().join("live.bin");
    std::fs::write(&file, Inputs::new().chunks()).expect("written");
    let program = Running::start(&[
        "from-bin",
        "--follow",
        text(&file),
        "-o",
        "tcp-listen:0",
        "--stream-types",
        "raw,heartbeat:100ms",
    ]);
    let address = program.address("tcp");
    std::thread::sleep(Duration::from_millis(1000));
    let mut late = TcpStream::connect(&address).expect("it listens");
    late.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    let (mut got, mut buffer) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&got).contains("heartbeat") {
        let count = late.read(&mut buffer).expect("a heartbeat in time");
        got.extend_from_slice(&buffer[..count]);
    }
    program.signal("-TERM");
    late.read_to_end(&mut got).expect("readable");
    let (code, _, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    let account = Account::of(&got);
    assert_eq!(account.first.0, "meta");
    account.adds_up();
}

#[test]
fn following_ends_in_time_whatever_its_readers_do() {
    let folder = folder();
    let file = folder.path().join("live.bin");
    let chunks = run(
        &["to-bin", "--layout", "v2"],
        &run(&["from-bin", "--stream-types", "raw"], &large_part().repeat(3)).stdout,
    );
    std::fs::write(&file, chunks.stdout).expect("written");
    for policy in ["oldest", "block"] {
        let program = Running::start(&[
            "from-bin",
            "--follow",
            text(&file),
            "-o",
            "tcp-listen:0",
            "--wait-readers",
            "1",
            "--drop-policy",
            policy,
        ]);
        let stalled = TcpStream::connect(program.address("tcp")).expect("it listens");
        std::thread::sleep(Duration::from_millis(1500));
        let begun = Instant::now();
        program.signal("-TERM");
        let (code, _, said) = program.end();
        assert!(code.is_some(), "{said}");
        // Five seconds, and what a busy machine needs to notice.
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
        drop(stalled);
    }
    // And when it waits for a reader that never comes.
    let program =
        Running::start(&["from-bin", "--follow", text(&file), "-o", "tcp-listen:0", "--wait-readers", "1"]);
    program.address("tcp");
    std::thread::sleep(Duration::from_millis(500));
    program.signal("-TERM");
    let (code, _, said) = program.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("before there was a reader"), "{said}");
}

/// Runs the program with so many threads or descriptors.
fn limited(what: &str, limit: usize, args: &[&str]) -> std::process::Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/limited.py");
    let mut command = Command::new("timeout");
    command
        .args(["--signal=TERM", "2", "python3", text(&script), what, &limit.to_string(), PROGRAM])
        .args(args);
    command.stdin(Stdio::null()).output().expect("timeout and python3")
}

#[test]
#[cfg(target_os = "linux")]
fn without_threads_or_descriptors_there_is_a_sentence_and_no_panic() {
    let input = data("cpython/edge_over_write_buffer_none.bin");
    let whole = run(&["from-bin", text(&input)], b"").stdout;
    let alone = limited("threads", 1, &["from-bin", text(&input)]);
    if alone.status.code() == Some(1) && String::from_utf8_lossy(&alone.stderr).contains("ermission") {
        eprintln!("NOT TESTED: nobody else may run {PROGRAM}");
        return;
    }
    assert!(alone.stdout == whole, "{}", String::from_utf8_lossy(&alone.stderr));
    for (what, limits) in [("threads", 1..3), ("files", 5..11)] {
        for limit in limits {
            for kind in ["tcp", "ws"] {
                let listen = format!("{kind}-listen:0");
                let ended = limited(what, limit, &["from-bin", text(&input), "-o", &listen]);
                let said = String::from_utf8_lossy(&ended.stderr);
                assert!(!said.contains("panicked"), "{what} {limit}: {said}");
                // It has failed, or waits and is ended by the signal.
                assert!(
                    matches!(ended.status.code(), Some(1 | 124 | 127)),
                    "{what} {limit} {:?}: {said}",
                    ended.status
                );
                assert!(said.lines().count() < 8, "{said}");
            }
        }
    }
}

#[test]
fn a_recording_sends_chunks_and_messages_to_readers_as_it_writes_them_to_files() {
    for (format, kind) in [("binary", "tcp"), ("binary", "ws"), ("msgpack", "unix")] {
        let folder = folder();
        let command: &[&str] = if format == "binary" { &["from-bin"] } else { &["to-bin"] };
        let all = folder.path().join("all");
        let receiver = Running::start(&[command, &[&listener(kind, &folder), "-o", text(&all)]].concat());
        let target = format!("{kind}:{}", receiver.address(kind));
        let file = folder.path().join("beside.bin");
        let (code, _, said) = recorder::record(
            &["--run-id", "r", "--format", format, "-o", &target, "-o", text(&file)],
            "begin all end",
        );
        assert_eq!(code, 0, "{said}");
        let (code, _, said) = receiver.end();
        assert_eq!(code, Some(0), "{said}");
        let beside = std::fs::read(&file).expect("there");
        let got = std::fs::read(&all).expect("there");
        if format == "binary" {
            let raw = |stream: &[u8]| recorder::raw(&common::messages(stream));
            assert_eq!(raw(&got), raw(&run(&["from-bin"], &beside).stdout));
        } else {
            let samples = |profile: &[u8]| Account::of(&run(&["from-bin"], profile).stdout).received;
            assert_eq!(samples(&got), samples(&beside));
            assert_eq!(samples(&got), recorder::parts().samples);
        }
    }
}

#[test]
fn a_subscriber_of_chunks_that_comes_late_begins_with_a_chunk_and_tells_the_gap() {
    let folder = folder();
    let gate = folder.path().join("gate");
    let socket = folder.path().join("socket");
    let file = folder.path().join("beside.bin");
    let target = format!("unix-listen:{}", text(&socket));
    let mut command = recorder::command(
        &["--binary", "-o", &target, "-o", text(&file)],
        "begin part:0 part:1 gate part:2 part:3 end",
    );
    let child =
        command.env("GATE", &gate).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let recording = Recorder { child };
    wait_until("it listens", || socket.exists());
    let chunks =
        || std::fs::read(&file).map_or(0, |got| got.windows(8).filter(|at| *at == b"HCAT\x02\0\0\0").count());
    wait_until("two chunks are there", || chunks() == 2);
    std::thread::sleep(Duration::from_millis(200));
    let late = Peer::knock("unix", text(&socket));
    std::thread::sleep(Duration::from_millis(300));
    std::fs::write(&gate, "").expect("written");
    let got = late.rest("unix");
    let (code, said) = recording.end();
    assert_eq!(code, Some(0), "{said}");
    let read = run(&["from-bin"], &got);
    assert_eq!(read.code, 3, "{}", read.stderr);
    assert!(read.stderr.contains("chunks are missing before chunk 2"), "{}", read.stderr);
    let account = Account::of_part(&read.stdout);
    assert!(account.received > 0 && account.lost.contains_key("gap"), "{account:?}");
}
