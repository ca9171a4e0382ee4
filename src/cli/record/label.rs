//! The `command` label: how a process was started.

use std::path::Path;

use crate::cli::args::Record as Args;

/// Characters of a command line that become a label.
const LENGTH: usize = 1024;

/// The label for a command line, or `None` where none is wanted or known.
pub(crate) fn command(arguments: &[String], args: &Args) -> Option<String> {
    if args.no_command || arguments.is_empty() {
        return None;
    }
    // As ps shows it.
    let line =
        if args.command_arguments { arguments.join(" ") } else { without_arguments(arguments).join(" ") };
    if line.chars().count() <= LENGTH {
        return Some(line);
    }
    Some(line.chars().take(LENGTH - 1).chain(['…']).collect())
}

/// The program and, of a Python, what it runs: no argument, for it may be a secret.
fn without_arguments(arguments: &[String]) -> Vec<&str> {
    let mut arguments = arguments.iter().map(String::as_str);
    let program = arguments.next().unwrap_or_default();
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    if !name.starts_with("python") {
        return vec![program];
    }
    while let Some(argument) = arguments.next() {
        let options = argument.strip_prefix('-').filter(|options| !options.is_empty());
        let Some(options) = options else { return vec![program, argument] };
        if options == "-check-hash-based-pycs" {
            arguments.next();
        }
        if options.starts_with('-') {
            continue;
        }
        // Several may stand together; some take the rest, or what comes next.
        let Some(at) = options.find(['c', 'm', 'W', 'X']) else { continue };
        let (option, rest) = options[at..].split_at(1);
        match option {
            "c" => return vec![program, "-c"],
            "m" if rest.is_empty() => return [program, "-m"].into_iter().chain(arguments.next()).collect(),
            "m" => return vec![program, "-m", rest],
            _ if rest.is_empty() => drop(arguments.next()),
            _ => {}
        }
    }
    vec![program]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_and_what_it_runs_are_named_and_nothing_behind_them() {
        for (line, named) in [
            ("python3.15 app.py --password x", "python3.15 app.py"),
            ("/usr/bin/python3 -u -X dev -Wignore -W error app.py x", "/usr/bin/python3 app.py"),
            ("python -Bum http.server 80", "python -m http.server"),
            ("python -mtimeit x", "python -m timeit"),
            ("python -Ic code", "python -c"),
            ("python --check-hash-based-pycs always --help-all app.py x", "python app.py"),
            ("python - secret", "python -"),
            ("python -m", "python -m"),
            ("python -X", "python"),
            ("python", "python"),
            ("app -p secret", "app"),
            ("uwsgi --password secret", "uwsgi"),
            ("[kworker]", "[kworker]"),
        ] {
            let arguments: Vec<String> = line.split(' ').map(str::to_string).collect();
            assert_eq!(without_arguments(&arguments).join(" "), named, "{line}");
        }
    }
}
