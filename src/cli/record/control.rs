//! The control socket of a recorder: one command a line, one line of JSON for each answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cli::io::{Target, leads_to};
use crate::cli::net::{Address, BindFault, PrivateListener, SocketAddress, Transport};
use crate::cli::record::profiles::check_name;
use crate::error::{Error, Result};
use crate::protocol::parse_duration;

/// Bytes of a command: room for a path.
const LINE: u64 = 8 * 1024;
/// Who may be connected at once: the one that has been idle for longest makes room for another.
const CLIENTS: usize = 16;
/// The pause after one could not be let in.
const PAUSE: Duration = Duration::from_millis(100);
/// How long one may take to say a command.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command, and who waits for the answer.
pub(crate) struct Request {
    pub command: Command,
    pub reply: Sender<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Snapshot { path: PathBuf, after: Duration },
    Status,
    Stop,
}

impl Command {
    fn parse(line: &str) -> Result<Self, String> {
        match line.trim_end_matches(['\r', '\n']) {
            "status" => Ok(Command::Status),
            "stop" => Ok(Command::Stop),
            command => {
                let unknown = || format!("'{command}' is not one of: snapshot PATH [after 5s], status, stop");
                let rest = command.strip_prefix("snapshot ").ok_or_else(unknown)?;
                let (path, after) = if rest.starts_with('"') { quoted(rest) } else { bare(rest) }?;
                let path = snapshot_path(Path::new(&path)).map_err(|error| error.detail().to_string())?;
                Ok(Command::Snapshot { path, after })
            }
        }
    }
}

/// A path as a JSON string, and what stands after it.
fn quoted(text: &str) -> Result<(String, Duration), String> {
    let mut strings = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let path = strings.next().and_then(Result::ok).ok_or_else(|| format!("{text} is not a JSON string"))?;
    let after = match &text[strings.byte_offset()..] {
        "" => Duration::ZERO,
        rest => match rest.strip_prefix(" after ") {
            Some(after) => parse_duration(after)?,
            None => return Err(format!("'{rest}' after the path, where ' after 5s' may stand")),
        },
    };
    Ok((path, after))
}

/// A path as it is: where it ends as a delay does, it has to be quoted.
fn bare(text: &str) -> Result<(String, Duration), String> {
    match text.rsplit_once(" after ") {
        Some((path, after)) => Ok((path.to_string(), parse_duration(after)?)),
        None => Ok((text.to_string(), Duration::ZERO)),
    }
}

/// The file that a snapshot goes to.
///
/// # Errors
///
/// What is no file: standard output, a socket, an unknown scheme.
pub(crate) fn snapshot_path(argument: &Path) -> Result<PathBuf> {
    let what = match Address::parse(argument)? {
        Address::File(path) if path.as_os_str().is_empty() => "an empty name".to_string(),
        Address::File(path) => match Target::of_file(path)? {
            Target::File(path) if is_descriptor(&path) => "an open descriptor".to_string(),
            Target::File(path) => return check_name(&path).and_then(|()| check_plain(&path)).map(|()| path),
            other => other.name(),
        },
        Address::Standard => "standard output".to_string(),
        Address::Socket(address) => address.to_string(),
    };
    Err(no_file(&what))
}

/// Refuses what is no file, and would hold up the recorder or never be whole: a pipe, a device, a folder.
///
/// # Errors
///
/// A usage error that says what it is.
pub(crate) fn check_plain(path: &Path) -> Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    let kind = found.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let what = match () {
        () if kind.is_dir() => "a folder",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(no_file(what).within(&path.display().to_string()))
}

fn is_descriptor(path: &Path) -> bool {
    leads_to(path).is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput)
}

fn no_file(what: &str) -> Error {
    Error::usage(format!("a snapshot is a file, not {what}"))
}

/// The path in an address: `unix:PATH`, or a path alone.
///
/// # Errors
///
/// Any other address.
pub(crate) fn path_of(address: &str) -> Result<PathBuf> {
    match Address::parse(Path::new(address))? {
        Address::File(path) | Address::Socket(SocketAddress { transport: Transport::Unix(path), .. }) => {
            Ok(path)
        }
        _ => Err(Error::usage(format!(
            "--control '{address}' is not a unix socket; write it like unix:/run/app.sock"
        ))),
    }
}

/// A socket that is there as long as this is.
pub(crate) struct Control {
    _listener: PrivateListener,
}

impl Control {
    /// Listens, and hands each command on to `ask`, which says whether somebody is there to obey.
    ///
    /// # Errors
    ///
    /// A socket that cannot be made, or at which another recorder listens.
    pub fn listen(path: &Path, ask: impl Fn(Request) -> bool + Send + Sync + 'static) -> Result<Self> {
        let fault = |fault| match fault {
            BindFault::Living => Error::usage("another process listens there already"),
            BindFault::NoSocket => Error::usage("something that is not a socket exists there"),
            BindFault::Io(error) => error.into(),
        };
        let named = |error: Error| error.within(&path.display().to_string());
        let private = PrivateListener::bind(path).map_err(fault).map_err(named)?;
        let listener = private.listener.try_clone().map_err(Error::from).map_err(named)?;
        let ask = Arc::new(ask);
        let clients = Arc::new(Clients::default());
        let serve_all = move || {
            for socket in listener.incoming() {
                let Ok(socket) = socket else {
                    // Mostly for want of descriptors, which passes.
                    std::thread::sleep(PAUSE);
                    continue;
                };
                let Some(client) = Clients::admit(&clients, Arc::new(socket)) else { continue };
                let ask = Arc::clone(&ask);
                // Without a thread for it, it is hung up on.
                let _ = std::thread::Builder::new().spawn(move || {
                    // One who breaks off is gone.
                    let _ = serve(&client, &*ask);
                });
            }
        };
        std::thread::Builder::new().spawn(serve_all).map_err(Error::from).map_err(named)?;
        Ok(Control { _listener: private })
    }
}

/// Who is connected. The first is idle for longest; one whose command is carried out is not idle.
#[derive(Default)]
struct Clients(Mutex<Vec<(Arc<UnixStream>, bool)>>);

impl Clients {
    /// Lets one in, in place of another where there is no room; `None` where all of them wait for an answer.
    fn admit(clients: &Arc<Clients>, socket: Arc<UnixStream>) -> Option<Client> {
        let mut connected = clients.lock();
        if connected.len() >= CLIENTS {
            let Some(idle) = connected.iter().position(|(_, is_idle)| *is_idle) else {
                drop(connected);
                let _ = writeln!(&*socket, "{}", failed("too many wait for an answer"));
                return None;
            };
            let (idle, _) = connected.remove(idle);
            // Its thread sees the end.
            let _ = idle.shutdown(Shutdown::Both);
        }
        connected.push((Arc::clone(&socket), true));
        Some(Client { socket, clients: Arc::clone(clients) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Arc<UnixStream>, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who is connected, for as long as this is.
struct Client {
    socket: Arc<UnixStream>,
    clients: Arc<Clients>,
}

impl Client {
    /// Marks it as idle from now on, or not; whether it is still connected.
    fn set_idle(&self, is_idle: bool) -> bool {
        let mut connected = self.clients.lock();
        let Some(at) = connected.iter().position(|(socket, _)| Arc::ptr_eq(socket, &self.socket)) else {
            return false;
        };
        connected.remove(at);
        connected.push((Arc::clone(&self.socket), is_idle));
        true
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.clients.lock().retain(|(socket, _)| !Arc::ptr_eq(socket, &self.socket));
    }
}

fn serve(client: &Client, ask: &impl Fn(Request) -> bool) -> io::Result<()> {
    let socket = &*client.socket;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(socket);
    loop {
        let mut line = Vec::new();
        let got = (&mut lines).take(LINE).read_until(b'\n', &mut line)?;
        // One that had to make room is not obeyed any more.
        if got == 0 || !client.set_idle(false) {
            return Ok(());
        }
        let told = answer(&line, ask);
        client.set_idle(true);
        writeln!(&mut &*socket, "{told}")?;
        if is_cut(&line) {
            // What follows would be taken for commands.
            return Ok(());
        }
    }
}

fn is_cut(line: &[u8]) -> bool {
    line.len() as u64 == LINE && !line.ends_with(b"\n")
}

/// What a command is answered, once it is carried out.
fn answer(line: &[u8], ask: &impl Fn(Request) -> bool) -> String {
    if is_cut(line) {
        return failed(&format!("a command of more than {LINE} bytes"));
    }
    let command = std::str::from_utf8(line).map_err(|_| "a command that is not UTF-8".to_string());
    match command.and_then(Command::parse) {
        Ok(command) => {
            let (reply, answer) = mpsc::channel();
            let dropped = || failed("the recorder ends");
            if ask(Request { command, reply }) {
                answer.recv().unwrap_or_else(|_| dropped())
            } else {
                dropped()
            }
        }
        Err(why) => failed(&why),
    }
}

/// The answer to what cannot be done.
pub(crate) fn failed(why: &str) -> String {
    serde_json::json!({"ok": false, "error": why}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_apart_and_a_path_may_hold_blanks() {
        let snapshot = |path: &str, seconds| Command::Snapshot {
            path: PathBuf::from(path),
            after: Duration::from_secs(seconds),
        };
        assert_eq!(Command::parse("status\n"), Ok(Command::Status));
        assert_eq!(Command::parse("stop\r\n"), Ok(Command::Stop));
        assert_eq!(Command::parse("snapshot /a b.bin\n"), Ok(snapshot("/a b.bin", 0)));
        assert_eq!(Command::parse("snapshot /a after b.bin after 5s"), Ok(snapshot("/a after b.bin", 5)));
        assert_eq!(Command::parse(r#"snapshot "/a after 1s""#), Ok(snapshot("/a after 1s", 0)));
        assert_eq!(Command::parse(r#"snapshot "/\"\n" after 5s"#), Ok(snapshot("/\"\n", 5)));
        for line in [
            "",
            "snapshot",
            "snapshot /a after soon",
            "quit",
            r#"snapshot "/a"#,
            r#"snapshot "/a"b"#,
            r#"snapshot "/a" after soon"#,
            "snapshot -",
            "snapshot tcp:4000",
            r#"snapshot "ws:4000""#,
            "snapshot gopher:x",
        ] {
            assert!(Command::parse(line).is_err(), "{line}");
        }
    }

    /// What somebody is answered who says this and no more.
    fn answers(parse_message: &[u8]) -> Vec<String> {
        let (client, server) = UnixStream::pair().expect("sockets");
        let asked = |request: Request| {
            let told = matches!(request.command, Command::Status);
            request.reply.send(if told { "status" } else { "other" }.to_string()).is_ok()
        };
        (&client).write_all(parse_message).expect("room");
        client.shutdown(std::net::Shutdown::Write).expect("a socket");
        let server = Clients::admit(&Arc::new(Clients::default()), Arc::new(server)).expect("room");
        let _ = serve(&server, &asked);
        drop(server);
        BufReader::new(&client).lines().map(|line| line.expect("UTF-8")).collect()
    }

    #[test]
    fn a_command_is_a_line_of_bounded_length_and_the_last_needs_no_end() {
        assert_eq!(answers(b"status\nstop\nstatus"), ["status", "other", "status"]);
        let command = |length: u64| {
            let mut command = b"snapshot /".to_vec();
            command.resize(length as usize - 1, b'x');
            command
        };
        assert_eq!(answers(&[&command(LINE)[..], b"\nstatus\n"].concat()), ["other", "status"]);
        let [told] = &answers(&[&command(LINE)[..], b"x"].concat())[..] else { panic!("one") };
        assert!(told.contains("a command of more than"), "{told}");
    }

    #[test]
    fn a_snapshot_needs_the_name_of_a_file() {
        let error = snapshot_path(Path::new("file:")).expect_err("no name");
        assert_eq!(error.to_string(), "a snapshot is a file, not an empty name");
        assert_eq!(snapshot_path(Path::new("file:a:b")).expect("a file"), Path::new("a:b"));
    }

    fn ask(client: &UnixStream, command: &str) -> String {
        let mut line = String::new();
        (&*client).write_all(command.as_bytes()).expect("room");
        BufReader::new(client).read_line(&mut line).expect("an answer");
        line
    }

    #[test]
    fn the_client_that_is_idle_for_longest_makes_room_for_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let _control = Control::listen(&path, |request| request.reply.send("here".to_string()).is_ok());
        let connect = || UnixStream::connect(&path).expect("somebody listens");
        let mut clients: Vec<UnixStream> = (0..CLIENTS).map(|_| connect()).collect();
        for client in &clients {
            assert_eq!(ask(client, "status\n"), "here\n");
        }
        // The first is not idle for longest any more.
        assert_eq!(ask(&clients[0], "status\n"), "here\n");
        let others: Vec<UnixStream> = (1..CLIENTS).map(|_| connect()).collect();
        for client in &others {
            assert_eq!(ask(client, "status\n"), "here\n");
        }
        assert_eq!(ask(&clients[0], "status\n"), "here\n");
        for client in &mut clients[1..] {
            assert_eq!(client.read(&mut [0]).expect("the end"), 0);
        }
    }

    #[test]
    fn clients_that_wait_for_an_answer_do_not_make_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s");
        let (wait, waiting) = mpsc::channel();
        let _control = Control::listen(&path, move |request| wait.send(request).is_ok());
        let connect = || UnixStream::connect(&path).expect("somebody listens");
        let clients: Vec<UnixStream> = (0..CLIENTS).map(|_| connect()).collect();
        for mut client in &clients {
            client.write_all(b"status\n").expect("room");
        }
        let requests: Vec<Request> = (0..CLIENTS).map(|_| waiting.recv().expect("a command")).collect();
        let mut line = String::new();
        BufReader::new(connect()).read_line(&mut line).expect("an answer");
        assert!(line.contains("too many wait for an answer"), "{line}");
        for request in requests {
            request.reply.send("here".to_string()).expect("somebody waits");
        }
        for client in &clients {
            BufReader::new(client).read_line(&mut line).expect("an answer");
        }
        assert_eq!(line.matches("here\n").count(), CLIENTS);
    }
}
