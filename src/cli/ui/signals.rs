//! Signal handlers.

use std::io::Result;

/// A write that passes the limit on file size is to fail with an error that says so, not with the end
/// of the process.
#[cfg(unix)]
pub(crate) fn size_limit_is_an_error() -> Result<()> {
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default())?;
    Ok(())
}

/// Calls `stop`, with the signal's number, when the process is asked to end: SIGINT, SIGTERM, and SIGHUP
/// unless whoever started it has it ignored (nohup).
#[cfg(unix)]
pub(crate) fn on_stop(mut stop: impl FnMut(i32) + Send + 'static) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let asking = [SIGINT, SIGTERM].into_iter().chain(Some(SIGHUP).filter(|signal| !is_ignored(*signal)));
    let mut signals = signal_hook::iterator::Signals::new(asking)?;
    std::thread::Builder::new().spawn(move || signals.forever().for_each(&mut stop))?;
    Ok(())
}

/// Whether the process was started with the signal ignored, where the system says so.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Calls `ask` with every SIGUSR1.
#[cfg(unix)]
pub(crate) fn on_snapshot(mut ask: impl FnMut() + Send + 'static) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGUSR1])?;
    std::thread::Builder::new().spawn(move || signals.forever().for_each(|_| ask()))?;
    Ok(())
}

/// Removes unfinished files when the process is asked to end.
#[cfg(unix)]
pub(crate) fn clean_up_on_stop() -> Result<()> {
    on_stop(end_now)
}

/// Ends the process as the uncaught signal would, after removing unfinished files.
#[cfg(unix)]
pub(crate) fn end_now(signal: i32) {
    crate::cli::io::remove_unfinished_files();
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

#[cfg(not(unix))]
pub(crate) fn size_limit_is_an_error() -> Result<()> {
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn on_stop(_: impl FnMut(i32) + Send + 'static) -> Result<()> {
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn end_now(_: i32) {}

#[cfg(not(unix))]
pub(crate) fn clean_up_on_stop() -> Result<()> {
    Ok(())
}
