//! Resolves an output name: the path after all symbolic links, or an open descriptor.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Links one after the other; the kernel follows as many.
const LINKS: usize = 40;

/// What a name leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// A path of which the last part is no link; it need not be there.
    Path(PathBuf),
    /// A descriptor of this process, as in `/dev/stdout` or `/dev/fd/3`.
    Descriptor(PathBuf, i32),
    /// A descriptor of another process.
    Foreign(PathBuf),
}

impl Named {
    /// Follows the links of the last part, by the kernel's rule for folders in which others may make some.
    ///
    /// # Errors
    ///
    /// A folder that is not there, a name that only a folder can have, too many links, and one that is not
    /// followed.
    pub fn of(path: &Path) -> io::Result<Named> {
        let mut path = path.to_path_buf();
        for _ in 0..=LINKS {
            if ends_as_a_folder(&path) {
                // Nothing that could be written to; where the system knows better why, it says so.
                return Err(match fs::metadata(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => error,
                    _ => io::ErrorKind::IsADirectory.into(),
                });
            }
            let Some(name) = path.file_name() else { return Ok(Named::Path(path)) };
            let folder = fs::canonicalize(folder_of(&path))?;
            if let Some(descriptor) = descriptor(&folder, name) {
                return Ok(descriptor);
            }
            let at = folder.join(name);
            let Ok(leads_to) = fs::read_link(&at) else { return Ok(Named::Path(at)) };
            check_link(&folder, &at)?;
            path = folder.join(leads_to);
        }
        // In the system's words.
        fs::metadata(&path)?;
        Err(io::Error::other("too many links"))
    }
}

/// Whether only a folder can be called so.
fn ends_as_a_folder(path: &Path) -> bool {
    let name = path.as_os_str().as_encoded_bytes();
    name.ends_with(b"/") || name.ends_with(b"/.")
}

/// A descriptor, where the folder is one of those.
fn descriptor(folder: &Path, name: &OsStr) -> Option<Named> {
    let number: i32 = name.to_str()?.parse().ok()?;
    let at = folder.join(name);
    if folder == Path::new("/dev/fd") {
        return Some(Named::Descriptor(at, number));
    }
    if !folder.starts_with("/proc") || !folder.ends_with("fd") {
        return None;
    }
    let is_own = fs::canonicalize("/proc/self").is_ok_and(|own| folder.starts_with(own));
    Some(if is_own { Named::Descriptor(at, number) } else { Named::Foreign(at) })
}

/// The kernel's rule (protected_symlinks), for systems that do not enforce it: in a folder where everybody may
/// make links and nobody may take away another's, only one's own links and those of the folder's owner are
/// followed.
#[cfg(unix)]
fn check_link(folder: &Path, link: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    const STICKY_FOR_ALL: u32 = 0o1002;
    let (folder, link) = (fs::metadata(folder)?, fs::symlink_metadata(link)?);
    let is_shared = folder.mode() & STICKY_FOR_ALL == STICKY_FOR_ALL;
    let is_trusted = [rustix::process::geteuid().as_raw(), folder.uid()].contains(&link.uid());
    if is_shared && !is_trusted {
        let fault =
            "it is a link of another user in a folder that all users can write to, and is not followed";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, fault));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_link(_: &Path, _: &Path) -> io::Result<()> {
    Ok(())
}

/// The path that a name leads to, at which there need be nothing yet.
///
/// # Errors
///
/// A name that cannot be followed, or leads to a descriptor.
pub fn leads_to(path: &Path) -> io::Result<PathBuf> {
    match Named::of(path)? {
        Named::Path(path) => Ok(path),
        Named::Descriptor(..) | Named::Foreign(_) => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is an open descriptor, not a file"))
        }
    }
}

/// The folder that a path is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Packings and archives by the endings of names: of all of them only `.zst` is written.
const PACKED: [&str; 33] = [
    "7z", "br", "brotli", "bz", "bz2", "bzip2", "deflate", "gz", "gzip", "lrz", "lz", "lz4", "lzfse", "lzip",
    "lzma", "lzo", "rar", "rz", "snappy", "sz", "tar", "taz", "tbz", "tbz2", "tgz", "tlz", "txz", "tzst",
    "xz", "z", "zip", "zlib", "zstd",
];

/// Whether a name has this ending, in capitals or not.
pub(crate) fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending))
}

/// The packing that a name promises and nobody does here.
pub(crate) fn unkept_promise(path: &Path) -> Option<&'static str> {
    PACKED.into_iter().find(|packed| has_ending(path, packed))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn names_are_followed_to_what_need_not_be_there() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().canonicalize().expect("there");
        let at = |name: &str| folder.join(name);
        symlink("b", at("a")).expect("a link");
        symlink(at("missing"), at("b")).expect("a link");
        symlink("loop", at("loop")).expect("a link");
        symlink("nowhere/file", at("astray")).expect("a link");
        symlink("/dev/stdout", at("out")).expect("a link");
        assert_eq!(Named::of(&at("a")).expect("followed"), Named::Path(at("missing")));
        assert_eq!(Named::of(&at("plain")).expect("followed"), Named::Path(at("plain")));
        for (name, kind) in [
            ("astray", io::ErrorKind::NotFound),
            ("none/file", io::ErrorKind::NotFound),
            ("none/", io::ErrorKind::IsADirectory),
        ] {
            assert_eq!(Named::of(&at(name)).expect_err(name).kind(), kind, "{name}");
        }
        assert!(Named::of(&at("loop")).is_err());
        for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1"] {
            assert!(
                matches!(Named::of(Path::new(name)).expect("followed"), Named::Descriptor(_, 1)),
                "{name}"
            );
        }
        assert!(matches!(Named::of(&at("out")).expect("followed"), Named::Descriptor(_, 1)));
        assert!(matches!(Named::of(Path::new("/proc/1/fd/1")), Ok(Named::Foreign(_)) | Err(_)));
    }
}
