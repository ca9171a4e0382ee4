//! Whatever stands under the name of an output, each command that writes behaves as `tee` would with it: all of
//! it is there, or one clear error says why not, within a bounded time.
#![cfg(unix)]

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::recorder::wait_for;
use common::writers::{Outcome, WRITERS, Writer};
use common::{PROGRAM, run, text};

const OLD: &[u8] = b"what was there";

/// A folder of its own for each writer, with the name that it is to write to.
fn each(act: impl Fn(Writer, &Path, &Path)) {
    for writer in WRITERS {
        let folder = tempfile::tempdir().expect("a folder");
        act(writer, folder.path(), &folder.path().join(format!("out.{}", writer.ending())));
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

fn assert_whole(writer: Writer, path: &Path, outcome: &Outcome) {
    assert_eq!(outcome.code, Some(0), "{writer:?}: {}", outcome.said);
    assert!(writer.is_whole(&fs::read(path).expect("readable")), "{writer:?}: {}", outcome.said);
}

/// One error, which names the target and says why, and no name that was only for a while.
fn assert_refused(writer: Writer, outcome: &Outcome, why: &[&str]) {
    assert!(matches!(outcome.code, Some(1 | 2)), "{writer:?}: {outcome:?}");
    assert!(why.iter().any(|why| outcome.said.contains(why)), "{writer:?}: {}", outcome.said);
    let errors = outcome.said.lines().filter(|line| line.starts_with("tachyon-jsonl: "));
    assert_eq!(errors.count(), 1, "{writer:?}: {}", outcome.said);
    assert!(!outcome.said.contains(".tachyon-jsonl-"), "{writer:?}: {}", outcome.said);
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo runs").success());
}

#[test]
fn a_new_name_gets_a_whole_file() {
    each(|writer, folder, path| {
        assert_whole(writer, path, &writer.write_to(text(path)));
        assert_eq!(names_in(folder).len(), 1, "{writer:?}");
    });
}

#[test]
fn a_file_is_replaced_with_its_rights_but_those_of_who_runs_it() {
    each(|writer, folder, path| {
        fs::write(path, OLD).expect("writable");
        fs::set_permissions(path, fs::Permissions::from_mode(0o6750)).expect("ours");
        assert_whole(writer, path, &writer.write_to(text(path)));
        assert_eq!(fs::metadata(path).expect("there").mode() & 0o7777, 0o750, "{writer:?}");
        assert_eq!(names_in(folder).len(), 1, "{writer:?}");
    });
}

#[test]
fn a_file_with_two_names_is_the_same_under_both() {
    each(|writer, folder, path| {
        fs::write(path, vec![b'x'; 1 << 20]).expect("writable");
        fs::hard_link(path, folder.join("other")).expect("a second name");
        assert_whole(writer, path, &writer.write_to(text(path)));
        assert!(
            fs::read(path).expect("there") == fs::read(folder.join("other")).expect("there"),
            "{writer:?}"
        );
    });
}

#[test]
fn a_link_stays_and_what_it_leads_to_is_written() {
    for is_there in [true, false] {
        each(|writer, folder, path| {
            let behind = folder.join("folder");
            fs::create_dir(&behind).expect("a folder");
            if is_there {
                fs::write(behind.join("file"), OLD).expect("writable");
            }
            symlink("between", path).expect("a link");
            symlink("folder/file", folder.join("between")).expect("a link");
            assert_whole(writer, &behind.join("file"), &writer.write_to(text(path)));
            assert!(path.is_symlink() && names_in(&behind) == ["file"], "{writer:?}");
        });
    }
}

#[test]
fn a_link_that_leads_nowhere_is_refused() {
    each(|writer, folder, path| {
        symlink("nowhere/file", path).expect("a link");
        assert_refused(writer, &writer.write_to(text(path)), &["No such file or directory"]);
        symlink("loop", folder.join("loop")).expect("a link");
        assert_refused(writer, &writer.write_to(text(&folder.join("loop"))), &["symbolic link"]);
    });
}

/// As the kernel has it where protected_symlinks is on.
#[test]
fn a_link_of_somebody_else_in_a_shared_folder_is_not_followed() {
    each(|writer, folder, path| {
        let shared = folder.join("shared");
        fs::create_dir(&shared).expect("a folder");
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).expect("ours");
        let link = shared.join(path.file_name().expect("a name"));
        symlink("../victim", &link).expect("a link");
        fs::write(folder.join("victim"), OLD).expect("writable");
        if std::os::unix::fs::lchown(&link, Some(12_345), None).is_err() {
            let _ = writeln!(std::io::stderr(), "!! NOT TESTED: a link cannot be given away here");
            return;
        }
        assert_refused(writer, &writer.write_to(text(&link)), &["not followed"]);
        assert_eq!(fs::read(folder.join("victim")).expect("there"), OLD, "{writer:?}");
    });
}

#[test]
fn a_named_pipe_carries_all_to_its_reader() {
    each(|writer, _, path| {
        make_pipe(path);
        let running = writer.start(text(path), Stdio::null());
        if writer == Writer::Snapshot {
            return assert_refused(writer, &running.end(), &["not a named pipe"]);
        }
        let from = path.to_path_buf();
        let reader = std::thread::spawn(move || fs::read(from).expect("readable"));
        let outcome = running.end();
        assert_eq!(outcome.code, Some(0), "{writer:?}: {}", outcome.said);
        assert!(writer.is_whole(&reader.join().expect("no panic")), "{writer:?}: {}", outcome.said);
    });
}

#[test]
fn a_named_pipe_that_nobody_reads_is_waited_for_until_a_signal_comes() {
    each(|writer, folder, path| {
        make_pipe(path);
        let mut running = writer.start(text(path), Stdio::null());
        if writer == Writer::Snapshot {
            return assert_refused(writer, &running.end(), &["not a named pipe"]);
        }
        assert!(!running.ends_within(Duration::from_millis(400)), "{writer:?}");
        running.signal("-TERM");
        assert!(running.ends_within(Duration::from_secs(10)), "{writer:?}");
        assert_eq!(running.end().code, None, "{writer:?}");
        assert_eq!(names_in(folder).len(), 1, "{writer:?}");
    });
}

#[test]
fn a_named_pipe_that_nobody_opens_is_given_up() {
    each(|writer, _, path| {
        make_pipe(path);
        if writer == Writer::Snapshot {
            return;
        }
        let mut running = writer.start_with(text(path), &["--stall-timeout", "300ms"], Stdio::null());
        assert!(running.ends_within(Duration::from_secs(10)), "{writer:?}");
        assert_refused(writer, &running.end(), &["no reader has opened the pipe within 300ms"]);
    });
}

/// A reader of a named pipe that is full, so that a writer has to wait for it.
fn without_room(path: &Path) -> File {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let pipe = File::options().read(true).write(true).custom_flags(flags).open(path).expect("a pipe");
    // No writer can make room by asking for a larger one.
    let _ = rustix::pipe::fcntl_setpipe_size(&pipe, 1 << 20);
    while (&pipe).write(&[0; 4096]).is_ok() {}
    pipe
}

/// Waits until the process has opened this file.
fn has_opened(process: u32, path: &Path) {
    let path = path.canonicalize().expect("it is there");
    wait_for("the writer to open its target", || {
        let mut open = fs::read_dir(format!("/proc/{process}/fd")).ok()?;
        open.find_map(|entry| fs::read_link(entry.ok()?.path()).ok().filter(|name| *name == path))
    });
}

#[test]
fn a_reader_of_a_named_pipe_who_leaves_early_is_told() {
    each(|writer, folder, path| {
        if writer == Writer::Snapshot {
            return;
        }
        make_pipe(path);
        let reader = without_room(path);
        let running = writer.start(text(path), Stdio::null());
        has_opened(running.child.id(), path);
        drop(reader);
        let outcome = running.end();
        assert!(matches!(outcome.code, Some(1 | 3)), "{writer:?}: {outcome:?}");
        assert!(outcome.said.contains("its reader has gone"), "{writer:?}: {}", outcome.said);
        // Beside a file, which gets all.
        if matches!(writer, Writer::FromBin | Writer::Upgrade) {
            let file = folder.join("file");
            let mut command = Command::new(PROGRAM);
            let inputs = common::writers::inputs();
            match writer {
                Writer::FromBin => command.arg("from-bin").arg(&inputs.profile),
                _ => command.arg("upgrade").arg(&inputs.cpython),
            };
            let reader = without_room(path);
            let child = command.arg("-o").arg(path).arg("-o").arg(&file).spawn().expect("it starts");
            has_opened(child.id(), path);
            drop(reader);
            let code = child.wait_with_output().expect("it ends").status.code();
            assert_eq!(code, Some(3), "{writer:?}");
            assert!(writer.is_whole(&fs::read(&file).expect("there")), "{writer:?}");
        }
    });
}

/// A pipe with a queue in front of it is no different: only standard output may be left early.
#[test]
fn a_reader_who_leaves_a_queue_early_is_told() {
    let inputs = common::writers::inputs();
    for with_file in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, file) = (folder.path().join("pipe"), folder.path().join("file"));
        make_pipe(&path);
        let reader = without_room(&path);
        let mut command = Command::new(PROGRAM);
        command.arg("from-bin").arg(&inputs.profile).args([
            "--drop-policy",
            "oldest",
            "--flush",
            "samples:60",
        ]);
        command.arg("-o").arg(&path).stderr(Stdio::piped());
        if with_file {
            command.arg("-o").arg(&file);
        }
        let child = command.spawn().expect("it starts");
        has_opened(child.id(), &path);
        drop(reader);
        let ended = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(matches!(ended.status.code(), Some(1 | 3)), "{with_file}: {said}");
        assert!(said.contains("pipe: "), "{with_file}: {said}");
        assert_eq!(file.exists(), with_file);
    }
}

#[test]
fn devices_take_what_they_can() {
    for writer in WRITERS {
        let (null, full) = (writer.write_to("/dev/null"), writer.write_to("/dev/full"));
        if writer == Writer::Snapshot {
            assert_refused(writer, &null, &["not a device"]);
            assert_refused(writer, &full, &["not a device"]);
            continue;
        }
        assert_eq!(null.code, Some(0), "{writer:?}: {}", null.said);
        assert!(matches!(full.code, Some(1 | 3)), "{writer:?}: {full:?}");
        assert!(full.said.contains("/dev/full: No space left on device"), "{writer:?}: {}", full.said);
    }
}

#[test]
fn what_no_file_can_be_is_refused() {
    each(|writer, folder, path| {
        fs::create_dir(path).expect("a folder");
        assert_refused(writer, &writer.write_to(text(path)), &["Is a directory", "not a folder"]);
        let slash = format!("{}/new/", text(folder));
        assert_refused(writer, &writer.write_to(&slash), &["is a directory", "Is a directory"]);
        let socket = folder.join(format!("socket.{}", writer.ending()));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let refused = writer.write_to(text(&socket));
        assert_refused(writer, &refused, &["No such device or address", "not a socket"]);
        let inside = path.join("file/out");
        fs::write(path.join("file"), OLD).expect("writable");
        assert_refused(writer, &writer.write_to(text(&inside)), &["Not a directory"]);
        for ending in ["gz", "xz", "ZIP", "gzip", "Snappy", "BZ2", "lz4", "Br", "7z", "tgz", "tar", "ZSTD"] {
            let name = format!("{}/new.{}.{ending}", text(folder), writer.ending());
            assert_refused(writer, &writer.write_to(&name), &["which is not supported"]);
        }
        assert_eq!(names_in(folder).len(), 2, "{writer:?}");
    });
}

#[test]
fn an_ending_in_capitals_is_the_same_ending() {
    let folder = tempfile::tempdir().expect("a folder");
    let packed = folder.path().join("x.jsonl.ZST");
    let input = common::data("cpython/tiny_script_none.bin");
    let ran = common::run(&["from-bin", text(&input), "-o", text(&packed)], b"");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(fs::read(&packed).expect("readable").starts_with(b"\x28\xb5\x2f\xfd"));
    let refused =
        common::run(&["record", "-o", text(&folder.path().join("x.BIN.Zst")), "--", "run", "x.py"], b"");
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("chunk by chunk"), "{}", refused.stderr);
}

#[test]
fn an_open_descriptor_goes_on_where_it_is() {
    for writer in WRITERS {
        for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            let folder = tempfile::tempdir().expect("a folder");
            let log = folder.path().join("log");
            fs::write(&log, "before\n").expect("writable");
            let file = File::options().append(true).open(&log).expect("writable");
            let before = file.metadata().expect("there").ino();
            let outcome = writer.start(name, file.into()).end();
            if writer == Writer::Snapshot {
                assert_refused(writer, &outcome, &["not standard output"]);
                continue;
            }
            assert_eq!(outcome.code, Some(0), "{writer:?}: {}", outcome.said);
            let found = fs::read(&log).expect("there");
            let written = found.strip_prefix(b"before\n").expect("it is still there");
            // A name that ends in .zst packs, and a stream is what a name without .bin gets.
            let is = match writer {
                Writer::Packed => Writer::FromBin,
                Writer::RecordProfile => Writer::RecordStream,
                other => other,
            };
            assert!(is.is_whole(written), "{writer:?} {name}");
            assert_eq!(fs::metadata(&log).expect("there").ino(), before, "{writer:?}");
        }
    }
}

/// Descriptors beyond the standard ones, of all kinds.
#[test]
fn any_descriptor_may_be_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = r#"cd "$1"; profile=$2
        echo before > log; exec 3>>log; "$0" from-bin "$profile" -o /dev/fd/3 || exit 1; echo after >&3
        exec 4>cut; echo before >&4; "$0" from-bin "$profile" -o /proc/self/fd/4 || exit 2; echo after >&4
        "$0" from-bin "$profile" -o /dev/fd/5 5>&1 | cat > piped || exit 3
        "$0" from-bin "$profile" -o /dev/fd/9 9>&- && exit 4
        "$0" from-bin "$profile" -o /dev/stderr 2> err || exit 5
        "$0" from-bin "$profile" > plain"#;
    let profile = &common::writers::inputs().profile;
    let status = Command::new("sh").args(["-c", script, PROGRAM]).arg(folder.path()).arg(profile).status();
    assert_eq!(status.expect("sh runs").code(), Some(0));
    let read = |name: &str| fs::read(folder.path().join(name)).expect("there");
    let plain = read("plain");
    assert_eq!(read("log"), [b"before\n", &plain[..], b"after\n"].concat());
    assert_eq!(read("cut"), [b"before\n", &plain[..], b"after\n"].concat());
    assert_eq!(read("piped"), plain);
    assert_eq!(read("err"), plain);
}

#[test]
fn one_place_under_two_names_is_a_target_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    fs::write(&one, OLD).expect("writable");
    fs::hard_link(&one, &other).expect("a second name");
    make_pipe(&folder.path().join("pipe"));
    symlink("pipe", folder.path().join("link")).expect("a link");
    let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
    let profile = text(&common::writers::inputs().profile).to_string();
    for targets in [
        ["-", "/dev/stdout"],
        ["/dev/fd/1", "/proc/self/fd/1"],
        [text(&one), text(&other)],
        [text(&pipe), text(&link)],
        ["/dev/stdout", text(&one)],
    ] {
        let output = Command::new(PROGRAM)
            .args(["from-bin", &profile, "-o", targets[0], "-o", targets[1]])
            .stdout(File::options().append(true).open(&one).expect("writable"))
            .output()
            .expect("it ends");
        assert_eq!(output.status.code(), Some(2), "{targets:?}");
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("is given twice as a target"),
            "{targets:?}"
        );
    }
    // And an output that is the input.
    let output = Command::new(PROGRAM)
        .args(["from-bin", text(&one)])
        .stdout(File::options().append(true).open(&other).expect("writable"))
        .output();
    assert_eq!(output.expect("it ends").status.code(), Some(2));
    assert_eq!(fs::read(&one).expect("there"), OLD);
}

/// Whoever has a file locked as we do writes to it.
#[test]
fn a_target_has_one_writer() {
    each(|writer, folder, path| {
        fs::write(path, OLD).expect("writable");
        let mut holder = Command::new("python3")
            .args(["-c", "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        holder.stdout.take().expect("a pipe").read_exact(&mut [0]).expect("locked");
        assert_refused(writer, &writer.write_to(text(path)), &["another process is writing to it"]);
        assert_eq!(fs::read(path).expect("there"), OLD, "{writer:?}");
        assert_eq!(names_in(folder).len(), 1, "{writer:?}");
        drop(holder.stdin.take());
        assert!(holder.wait().expect("it ends").success());
        assert_whole(writer, path, &writer.write_to(text(path)));
    });
}

/// In a mount namespace of its own, for which one has to be root: there this test runs again.
#[cfg(target_os = "linux")]
#[test]
fn mounted_files_read_only_folders_and_full_disks() {
    const INSIDE: &str = "TACHYON_JSONL_TEST_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        return mounts::all();
    }
    let name = "mounted_files_read_only_folders_and_full_disks";
    // Root needs no other users; who is not has to be root in there.
    let namespaces: [&[&str]; 2] = [&["--mount"], &["--mount", "--map-root-user"]];
    let probe = ["mount", "-t", "tmpfs", "tmpfs", "/mnt"];
    let can_mount = |namespace: &&&[&str]| {
        let mut command = Command::new("unshare");
        let probed = command.args(**namespace).args(probe).stderr(Stdio::null()).status();
        probed.is_ok_and(|status| status.success())
    };
    let Some(namespace) = namespaces.iter().find(can_mount) else {
        let _ = writeln!(std::io::stderr(), "!! NOT TESTED: nothing can be mounted here");
        return;
    };
    let again = Command::new("unshare")
        .args(*namespace)
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare runs");
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert!(String::from_utf8_lossy(&again.stdout).contains("1 passed"), "{again:?}");
}

#[cfg(target_os = "linux")]
mod mounts {
    use super::*;

    fn mount(arguments: &[&str]) {
        assert!(
            Command::new("mount").args(arguments).status().expect("mount runs").success(),
            "{arguments:?}"
        );
    }

    pub fn all() {
        each(a_mounted_file_is_written_over);
        each(a_folder_that_cannot_be_written_to);
        each(a_full_disk);
        a_ring_that_has_no_room();
    }

    /// It is refused at once, before anything is sampled, and nothing is left of it.
    fn a_ring_that_has_no_room() {
        let folder = tempfile::tempdir().expect("a folder");
        mount(&["-t", "tmpfs", "-o", "size=1m", "tmpfs", text(folder.path())]);
        let ring = folder.path().join("app.ring");
        let mut recorder = common::recorder::command(
            &["--ring", "30s,64MiB", "--ring-file", text(&ring)],
            "begin part:0 wait",
        );
        let ended = recorder.stdout(Stdio::null()).stderr(Stdio::piped()).output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.contains("app.ring") && said.contains("No space left on device"), "{said}");
        let room = fs::metadata(&ring).map_or(0, |found| found.len());
        assert!(room < 1 << 20, "{room}");
        Command::new("umount").arg(folder.path()).status().expect("umount runs");
    }

    fn a_mounted_file_is_written_over(writer: Writer, folder: &Path, path: &Path) {
        let behind = folder.join("behind");
        fs::write(&behind, vec![b'x'; 1 << 20]).expect("writable");
        fs::write(path, "").expect("writable");
        mount(&["--bind", text(&behind), text(path)]);
        assert_whole(writer, &behind, &writer.write_to(text(path)));
        assert_eq!(names_in(folder).len(), 2, "{writer:?}");
    }

    fn a_folder_that_cannot_be_written_to(writer: Writer, folder: &Path, path: &Path) {
        let closed = folder.join("closed");
        fs::create_dir(&closed).expect("a folder");
        let (file, new) = (closed.join(path.file_name().expect("a name")), closed.join("new"));
        let new = new.with_extension(writer.ending());
        fs::write(&file, "").expect("writable");
        fs::write(path, OLD).expect("writable");
        mount(&["--bind", text(&closed), text(&closed)]);
        mount(&["-o", "remount,bind,ro", text(&closed)]);
        assert_refused(writer, &writer.write_to(text(&file)), &["Read-only file system"]);
        assert_refused(writer, &writer.write_to(text(&new)), &["Read-only file system"]);
        // One file in it may be written.
        mount(&["--bind", text(path), text(&file)]);
        assert_whole(writer, path, &writer.write_to(text(&file)));
    }

    fn a_full_disk(writer: Writer, folder: &Path, path: &Path) {
        let disk = folder.join("disk");
        fs::create_dir(&disk).expect("a folder");
        mount(&["-t", "tmpfs", "-o", "size=8k", "tmpfs", text(&disk)]);
        let old: PathBuf = disk.join(path.file_name().expect("a name"));
        fs::write(&old, OLD).expect("room");
        fs::write(disk.join("more"), [b'x'; 4096]).expect("room");
        for has_two_names in [false, true] {
            let outcome = writer.write_to(text(&old));
            if has_two_names && outcome.code == Some(0) {
                // It has room where the old one was.
                return assert_whole(writer, &old, &outcome);
            }
            assert!(matches!(outcome.code, Some(1 | 3)), "{writer:?}: {outcome:?}");
            assert!(outcome.said.contains("No space left on device"), "{writer:?}: {}", outcome.said);
            let found = fs::read(&old).expect("there");
            assert!(found == OLD || is_sound(writer, &found), "{writer:?}: {} bytes", found.len());
            assert_eq!(names_in(&disk).len(), 2 + usize::from(has_two_names), "{writer:?}");
            // Written over where it is, it is not begun where there is no room.
            fs::write(&old, OLD).expect("room");
            let _ = fs::hard_link(&old, disk.join("other"));
        }
    }

    /// Whether it is whole as far as it goes: what grows keeps what was whole before the disk was full.
    fn is_sound(writer: Writer, bytes: &[u8]) -> bool {
        match writer {
            // The run's last chunk is missing, and that is all.
            Writer::ToChunks | Writer::RecordProfile => {
                matches!(common::run(&["from-bin"], bytes).code, 0 | 3)
            }
            Writer::Follow | Writer::RecordStream => !common::messages(bytes).is_empty(),
            _ => false,
        }
    }
}

/// On a terminal, by whatever name.
#[test]
fn a_terminal_gets_all() {
    let inputs = common::writers::inputs();
    for target in ["-", "/dev/stdout", "/dev/tty"] {
        let line = format!("{PROGRAM} from-bin {} --stream-types end -o {target}", text(&inputs.profile));
        let ran = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output();
        let Ok(ran) = ran else {
            return common::not_installed("script");
        };
        let shown = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success(), "{target}: {shown}");
        assert!(
            shown.contains("\"type\":\"end\"") && shown.contains("\"complete\":true"),
            "{target}: {shown}"
        );
    }
}

#[test]
fn a_closed_standard_output_is_an_error() {
    let inputs = common::writers::inputs();
    let (profile, stream) = (text(&inputs.profile), text(&inputs.stream));
    let commands: [&[&str]; 15] = [
        &["from-bin", profile],
        &["to-bin", stream],
        &["to-bin", stream, "--layout", "v2"],
        &["recover", profile],
        &["upgrade", text(&inputs.cpython)],
        &["inspect", profile],
        &["inspect", stream, "--json"],
        &["check", stream],
        &["diff", profile, stream],
        &["schema"],
        &["man"],
        &["completions", "bash"],
        &["--version"],
        &["help"],
        &["from-bin", "--help"],
    ];
    for command in commands {
        // Closed, not open for writing, and alone; and those that are right.
        for (how, code) in [(">&-", 1), ("1</dev/null", 1), (">&- 2>/dev/null <&-", 1), ("1<>/dev/null", 0)] {
            let script = format!("exec \"$0\" \"$@\" {how}");
            let output = Command::new("sh").args(["-c", &script, PROGRAM]).args(command).output();
            let output = output.expect("sh runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{command:?} {how}: {said}");
            if code == 1 && !how.contains("2>") {
                assert!(said.contains("standard output: it is "), "{command:?}: {said}");
            }
        }
    }
    let script = "exec \"$0\" from-bin \"$1\" -o /dev/null >&-";
    let status = Command::new("sh").args(["-c", script, PROGRAM, profile]).status();
    assert_eq!(status.expect("sh runs").code(), Some(0), "nothing is to be written to it");
    let output = Command::new("sh").args(["-c", "exec \"$0\" check <&-", PROGRAM]).output().expect("sh runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard input: it is closed"), "{output:?}");
}

#[test]
fn help_and_version_need_room() {
    for arguments in ["--version", "help", "record --help"] {
        let script = format!("exec \"$0\" {arguments} > /dev/full");
        let output = Command::new("sh").args(["-c", &script, PROGRAM]).output().expect("sh runs");
        assert_eq!(output.status.code(), Some(1), "{arguments}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("No space left on device"), "{output:?}");
    }
    // A reader who has enough is no error.
    let script = "(\"$0\" completions bash; echo $? > \"$1\") | head -c 10 > /dev/null";
    let folder = tempfile::tempdir().expect("a folder");
    let status = folder.path().join("status");
    assert!(Command::new("sh").args(["-c", script, PROGRAM, text(&status)]).status().expect("sh").success());
    assert_eq!(fs::read_to_string(status).expect("there"), "0\n");
}

#[test]
fn a_pipe_or_a_folder_cannot_be_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    make_pipe(&pipe);
    for path in [&pipe, &PathBuf::from("/dev/zero"), &folder.path().to_path_buf()] {
        let ran = run(&["from-bin", "--follow", text(path)], b"");
        assert_eq!(ran.code, 2, "{}", ran.stderr);
        assert!(ran.stderr.contains("only a regular file can be followed"), "{}", ran.stderr);
    }
}
