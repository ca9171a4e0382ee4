//! Sockets as targets and as inputs, with the real tools at the other end where they are installed.
#![cfg(unix)]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::live::{Account, Running};
use common::{data, folder, profile, run, stream_of, text};

const TOKEN: &str = "correct-horse";

/// Starts a tool; `None`, said loudly, where it is not installed.
fn tool(name: &str, args: &[&str]) -> Option<Child> {
    let command = Command::new(name).args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    command.map_err(|error| common::not_installed(&format!("{name}: {error}"))).ok()
}

/// The reader of web sockets that has Python's standard library alone.
fn web_reader(args: &[&str]) -> Option<Child> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/ws_read.py");
    let command = Command::new("python3")
        .arg(script)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    command.map_err(|error| common::not_installed(&format!("python3: {error}"))).ok()
}

/// What a tool has read; its exit status.
fn read_by(child: Child) -> (Vec<u8>, i32) {
    let output = child.wait_with_output().expect("it ends");
    (output.stdout, output.status.code().expect("no signal"))
}

#[test]
fn every_kind_of_listener_serves_the_real_tools_beside_a_file() {
    let folder = folder();
    let [file, socket] = ["all.jsonl", "s.sock"].map(|name| folder.path().join(name));
    let unix = format!("unix-listen:{}", text(&socket));
    let input = profile();
    let program = Running::start(&[
        "from-bin",
        text(&input),
        "--run-id",
        "r",
        "-o",
        text(&file),
        "-o",
        &unix,
        "-o",
        "tcp-listen:0",
        "-o",
        "ws-listen:0",
        "--wait-readers",
        "5",
    ]);
    let (tcp, web) = (program.address("tcp"), program.address("ws"));
    assert_eq!(program.address("unix"), text(&socket));
    let made = std::fs::symlink_metadata(&socket).expect("there");
    assert!(made.file_type().is_socket());
    assert_eq!(made.permissions().mode() & 0o777, 0o600, "open to its owner alone");
    let (host, port) = tcp.rsplit_once(':').expect("a port");

    // One that asks whether somebody is there is answered, although the stream has not begun.
    let python = web_reader(&[&web, "--ping"]).map(|mut python| {
        let mut answer = [0; 5];
        python.stderr.take().expect("a pipe").read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"pong\n");
        python
    });
    let mut ours = UnixStream::connect(&socket).expect("it listens");
    let mut tools = vec![
        ("nc", tool("nc", &["-d", "-U", text(&socket)])),
        ("nc", tool("nc", &["-d", host, port])),
        ("python", python),
    ];
    tools.retain(|(_, child)| child.is_some());
    // Our own reader in the place of a tool that is not there.
    let others: Vec<TcpStream> = (tools.len()..4).map(|_| TcpStream::connect(&tcp).expect("bound")).collect();

    let mut got = Vec::new();
    ours.read_to_end(&mut got).expect("readable");
    for mut other in others {
        let mut same = Vec::new();
        other.read_to_end(&mut same).expect("readable");
        assert_eq!(same, got);
    }
    let all = std::fs::read(&file);
    for (name, child) in tools {
        let (same, code) = read_by(child.expect("there"));
        assert_eq!(code, 0, "{name}");
        assert!(same == got, "{name} got {} bytes of {}", same.len(), got.len());
    }
    let (code, stdout, said) = program.end();
    assert_eq!((code, stdout.len()), (Some(0), 0), "{said}");
    assert_eq!(stream_of(&profile(), &[]), got);
    assert_eq!(all.unwrap_or_else(|_| std::fs::read(&file).expect("there now")), got);
    assert!(!socket.exists(), "the name goes with the socket");
    Account::of(&got).adds_up();
}

#[test]
fn jq_reads_what_nc_brings() {
    let input = profile();
    let program = Running::start(&["from-bin", text(&input), "-o", "tcp-listen:0"]);
    let address = program.address("tcp");
    let (host, port) = address.rsplit_once(':').expect("a port");
    let script = format!(
        "command -v nc jq >&2 || exit 127; nc -d {host} {port} | jq -n '[inputs | select(.type == \"raw\").samples] | add'"
    );
    let (sum, code) = read_by(tool("sh", &["-c", &script]).expect("a shell"));
    if code == 127 {
        common::not_installed("nc or jq");
        return;
    }
    assert_eq!(code, 0);
    let samples = Account::of(&stream_of(&profile(), &[])).received;
    assert_eq!(String::from_utf8_lossy(&sum).trim(), samples.to_string());
    assert_eq!(program.end().0, Some(0));
}

#[test]
fn a_target_that_connects_reaches_a_source_that_listens_and_the_other_way_round() {
    let folder = folder();
    let input = profile();
    let bytes = run(&["to-bin"], &stream_of(&input, &[])).stdout;
    for kind in ["unix", "tcp", "ws"] {
        let socket = format!("{kind}.sock");
        let socket = folder.path().join(socket);
        let place = if kind == "unix" { text(&socket) } else { "0" };
        let listen = format!("{kind}-listen:{place}");
        // The reader listens, and writes the profile again.
        let back = folder.path().join(format!("{kind}.bin"));
        let reader = Running::start(&["to-bin", &listen, "-o", text(&back)]);
        let target = format!("{kind}:{}", reader.address(kind));
        let ran = run(&["from-bin", text(&input), "-o", &target], b"");
        assert_eq!((ran.code, ran.stdout.len()), (0, 0), "{}", ran.stderr);
        let (code, _, said) = reader.end();
        assert_eq!(code, Some(0), "{kind}: {said}");
        assert!(std::fs::read(&back).expect("written") == bytes, "{kind}");
        // The writer listens.
        let writer = Running::start(&["from-bin", text(&input), "-o", &listen]);
        let ran = run(&["check", &format!("{kind}:{}", writer.address(kind))], b"");
        assert_eq!(ran.code, 0, "{}", String::from_utf8_lossy(&ran.stdout));
        assert_eq!(writer.end().0, Some(0));
    }
}

#[test]
fn a_profile_travels_through_a_socket() {
    let folder = folder();
    let socket = folder.path().join("s");
    let stream = folder.path().join("s.jsonl");
    std::fs::write(&stream, stream_of(&profile(), &[])).expect("written");
    for (listen, kind) in [(format!("unix-listen:{}", text(&socket)), "unix"), ("tcp-listen:0".into(), "tcp")]
    {
        let reader = Running::start(&["inspect", &listen, "--json"]);
        let target = format!("{kind}:{}", reader.address(kind));
        let ran = run(&["to-bin", text(&stream), "--layout", "v2", "-o", &target], b"");
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let (code, report, said) = reader.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(String::from_utf8_lossy(&report).contains("\"samples\":"), "{said}");
    }
    // Whole chunks of a chunked profile, from a listener to who connects.
    let chunks = data("legacy/v2_20_chunks_zstd.bin");
    let writer = Running::start(&["recover", text(&chunks), "-o", "tcp-listen:0"]);
    let ran = run(&["from-bin", &format!("tcp:{}", writer.address("tcp"))], b"");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(writer.end().0, Some(0));
}

#[test]
fn usage_errors_name_what_is_wrong_with_a_target() {
    let input = profile();
    let input = text(&input);
    for (args, fault) in [
        (vec!["-o", "udp:127.0.0.1:1"], "unknown scheme 'udp:'"),
        (vec!["-o", "wss://example.org/"], "TLS is not supported"),
        (vec!["-o", "tcp:nowhere"], "is not an address"),
        (vec!["-o", "-", "-o", "-"], "standard output is given twice as a target"),
        (vec!["-o", "tcp-listen:0", "--binary", "--stream-types", "raw"], "writes chunks, not messages"),
        (vec!["-o", "tcp-listen:0", "--schema", "cpython"], "CPython's JSON Lines go to files"),
        (vec!["-o", "tcp-listen:0", "--stream-types", "raw,-meta"], "meta cannot be left out"),
        (vec!["-o", "tcp-listen:0", "--buffer", "1k"], "less than 64k"),
        (vec!["-o", "tcp-listen:0", "--max-readers", "0"], "invalid value '0'"),
        (vec!["-o", "tcp-listen:0", "--wait-readers", "65"], "--wait-readers is more than --max-readers"),
        (vec!["-o", "tcp-listen:0.0.0.0:0"], "can be reached from other machines, so it needs a token"),
        (vec!["-o", "ws-listen:[::]:0"], "can be reached from other machines, so it needs a token"),
        (vec!["-o", "tcp-listen:0.0.0.0:0", "--token", "not fit"], "a token must have 1 to"),
    ] {
        let ran = run(&[&["from-bin", input], args.as_slice()].concat(), b"");
        assert_eq!(ran.code, 2, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(fault), "{args:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("not fit"), "a token is not shown");
    }
    let ran = run(&["check", "tcp-listen:0.0.0.0:0"], b"");
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.stderr.contains("needs a token"), "{}", ran.stderr);
}

#[test]
fn who_has_not_the_token_gets_nothing() {
    let folder = folder();
    let secret = folder.path().join("token");
    std::fs::write(&secret, format!("{TOKEN}\n")).expect("written");
    let input = profile();
    let program = Running::start(&[
        "from-bin",
        text(&input),
        "-o",
        "tcp-listen:0.0.0.0:0",
        "-o",
        "ws-listen:0",
        "--token-file",
        text(&secret),
        "--wait-readers",
        "3",
    ]);
    let port = program.address("tcp").rsplit_once(':').expect("a port").1.to_string();
    let (tcp, web) = (format!("127.0.0.1:{port}"), program.address("ws"));
    // Wrong, too long, none within five seconds, and cut off before its end.
    let mut silent = TcpStream::connect(&tcp).expect("it listens");
    for said in ["TOKEN wrong\n".to_string(), "x".repeat(5000), format!("TOKEN {TOKEN}")] {
        let mut stream = TcpStream::connect(&tcp).expect("it listens");
        // It may have hung up before it was told all.
        let _ = stream.write_all(said.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        assert_eq!(got.len(), 0, "{said}");
    }
    let mut got = Vec::new();
    let _ = silent.read_to_end(&mut got);
    assert_eq!(got.len(), 0);
    program.wait_for("is refused: too slow");
    for (args, status) in [(vec![], 101), (vec!["--token", "wrong"], 101), (vec!["--query", "wrong"], 101)] {
        let Some(child) = web_reader(&[&[web.as_str()], args.as_slice()].concat()) else { break };
        assert_eq!(read_by(child), (Vec::new(), status), "{args:?}");
    }

    let with_header = web_reader(&[&web, "--token", TOKEN]);
    let with_query = web_reader(&[&web, "--query", TOKEN]);
    let mut rest = Vec::new();
    let missing = [&with_header, &with_query].iter().filter(|child| child.is_none()).count();
    for _ in 0..=missing {
        let mut stream = TcpStream::connect(&tcp).expect("it listens");
        stream.write_all(format!("TOKEN {TOKEN}\n").as_bytes()).expect("it listens");
        rest.push(stream);
    }
    let mut whole = Vec::new();
    for mut stream in rest {
        whole.clear();
        stream.read_to_end(&mut whole).expect("readable");
    }
    Account::of(&whole).adds_up();
    for child in [with_header, with_query].into_iter().flatten() {
        let (got, code) = read_by(child);
        assert_eq!((got == whole, code), (true, 0));
    }
    let (code, _, said) = program.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains(TOKEN), "{said}");
}

#[test]
fn both_sides_take_the_token_from_an_option_and_the_environment() {
    let input = profile();
    for kind in ["tcp", "ws"] {
        let reader = Running::start(&["check", &format!("{kind}-listen:0"), "--token", TOKEN]);
        let target = format!("{kind}:{}", reader.address(kind));
        // One that has none is sent away, and the next is waited for.
        let ran = run(
            &["from-bin", text(&input), "-o", &target, "--token", "mistaken", "--stall-timeout", "300ms"],
            b"",
        );
        reader.wait_for("is refused");
        assert!(matches!(ran.code, 1 | 3), "it may not look as if all went well: {}", ran.stderr);
        let ran = Command::new(common::PROGRAM)
            .args(["from-bin", text(&input), "-o", &target])
            .env("TACHYON_JSONL_TOKEN", TOKEN)
            .output()
            .expect("the program starts");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let (code, found, said) = reader.end();
        assert_eq!(code, Some(0), "{said} {}", String::from_utf8_lossy(&found));
        assert!(!said.contains(TOKEN) && !said.contains("mistaken"), "{said}");
    }
}

#[test]
fn a_page_of_elsewhere_gets_nothing_from_a_browser_on_this_machine() {
    let input = profile();
    let program = Running::start(&["from-bin", text(&input), "-o", "ws-listen:0"]);
    let address = program.address("ws");
    if let Some(child) = web_reader(&[&address, "--origin", "https://example.org"]) {
        assert_eq!(read_by(child), (Vec::new(), 103));
    }
    let origin = "http://localhost:8080";
    match web_reader(&[&address, "--origin", origin]) {
        Some(child) => Account::of(&read_by(child).0).adds_up(),
        None => return,
    }
    assert_eq!(program.end().0, Some(0));
}

#[test]
fn a_socket_of_the_dead_is_replaced_and_that_of_the_living_is_not() {
    let folder = folder();
    let [dead, living, file] = ["dead", "living", "file"].map(|name| folder.path().join(name));
    drop(UnixListener::bind(&dead).expect("bound"));
    let _listener = UnixListener::bind(&living).expect("bound");
    std::fs::write(&file, b"precious").expect("written");
    let input = profile();
    for (path, fault) in
        [(&living, "another process listens on"), (&file, "exists already and is not a socket")]
    {
        let ran = run(&["from-bin", text(&input), "-o", &format!("unix-listen:{}", text(path))], b"");
        assert!(matches!(ran.code, 1 | 2), "{}", ran.stderr);
        assert!(ran.stderr.contains(fault), "{}", ran.stderr);
    }
    assert_eq!(std::fs::read(&file).expect("readable"), b"precious");
    assert!(living.exists());
    let target = format!("unix-listen:{}", text(&dead));
    let program = Running::start(&["from-bin", text(&input), "-o", &target]);
    program.address("unix");
    // Nobody comes, and it is asked to end.
    program.signal("-TERM");
    assert_eq!(program.end().0, None);
    assert!(!dead.exists(), "the name goes with the socket");
    let left = std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(left, 2, "and nothing is left behind");
}

/// The head of an HTTP answer.
fn read_answer(stream: &mut TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("an answer");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "));
}

#[test]
fn whatever_comes_into_a_source_is_an_error_and_not_the_end() {
    let noise: Vec<u8> = (0..100_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    for (listen, kind, first) in [("tcp-listen:0", "tcp", &b""[..]), ("ws-listen:0", "ws", request)] {
        let reader = Running::start(&["from-bin", listen]);
        let mut stream = TcpStream::connect(reader.address(kind)).expect("it listens");
        if !first.is_empty() {
            stream.write_all(first).expect("it reads");
            read_answer(&mut stream);
        }
        // It may have enough before the end.
        let _ = stream.write_all(&noise);
        drop(stream);
        let (code, output, said) = reader.end();
        assert_eq!((code, output.len()), (Some(1), 0), "{said}");
        assert!(said.contains(kind) && !said.contains("panicked"), "{said}");
    }
    // A peer that ends in the middle of a frame.
    let reader = Running::start(&["check", "ws-listen:0"]);
    let mut stream = TcpStream::connect(reader.address("ws")).expect("it listens");
    stream.write_all(request).expect("it reads");
    read_answer(&mut stream);
    stream.write_all(&[0x81, 0xfe, 0xff, 0xff, 0, 0, 0, 0, b'{']).expect("it reads");
    drop(stream);
    let (code, _, said) = reader.end();
    assert!(matches!(code, Some(1 | 3)), "{said}");
    // Nobody there at all.
    let port = TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("bound").port();
    let ran = run(&["check", &format!("tcp:127.0.0.1:{port}")], b"");
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("tcp:127.0.0.1:{port}")), "{}", ran.stderr);
}

#[test]
fn an_upgraded_stream_goes_to_readers_too() {
    let input = data("cpython/wall_all_100hz_none.bin");
    let cpython = stream_of(&input, &["--schema", "cpython"]);
    let mut program = Running::start(&["upgrade", "-o", "tcp-listen:0"]);
    program.feed(&cpython);
    drop(program.stdin.take());
    let mut reader = TcpStream::connect(program.address("tcp")).expect("it listens");
    let mut got = Vec::new();
    reader.read_to_end(&mut got).expect("readable");
    assert_eq!(program.end().0, Some(0));
    let checked = run(&["check"], &got);
    assert_eq!(checked.code, 0, "{}", String::from_utf8_lossy(&checked.stdout));
    assert!(got.ends_with(b"}\n"));
}
