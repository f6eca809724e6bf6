//! Runs a compiler and shows what it is at. Knows nothing of what is compiled.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::command::{Command, CommandError};
use crate::progress::Step;

/// How often it is said what is compiled while the compiler says nothing new: the last crate or package takes minutes.
const SAYS_AGAIN: Duration = Duration::from_secs(1);

/// How a compiler tells, on its standard error, what it is at.
#[derive(Clone, Copy, Debug)]
pub struct Tongue {
    /// What it compiles one after the other.
    pub units: &'static str,
    /// What a line says is compiled now, if it says that.
    pub names: fn(&str) -> Option<&str>,
}

/// `go build -v`: a package on each line.
pub const GO: Tongue = Tongue { units: "packages", names: |line| Some(line) };
/// `cargo build`.
pub const CARGO: Tongue = Tongue { units: "crates", names: |line| line.trim_start().strip_prefix("Compiling ") };

/// Runs it to its end. What it prints on its standard error is quoted if it fails.
pub fn run(command: &Command, tongue: Tongue, step: &mut Step) -> Result<(), CommandError> {
    let not_started = |source| CommandError::Spawn { line: command.to_string(), source };
    let mut process = command.to_std();
    let mut child = process.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(not_started)?;
    let (say, said) = mpsc::channel();
    let stderr = child.stderr.take();
    let listener = std::thread::spawn(move || {
        for line in stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).lines()).map_while(Result::ok) {
            if say.send(line).is_err() {
                return;
            }
        }
    });
    let (mut printed, mut number, mut now) = (String::new(), 0_u32, String::new());
    loop {
        match said.recv_timeout(SAYS_AGAIN) {
            Ok(line) => {
                if let Some(name) = (tongue.names)(&line) {
                    (number, now) = (number + 1, name.to_owned());
                }
                printed.push_str(&line);
                printed.push('\n');
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if number > 0 {
            step.note(format_args!("{number} {}, now {now}", tongue.units));
        }
    }
    // It has nothing left to do, or the channel would be open.
    let _ = listener.join();
    let status = child.wait().map_err(not_started)?;
    if status.success() { Ok(()) } else { Err(command.failed(status, &printed)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Progress;

    #[test]
    fn a_failed_build_shows_what_the_compiler_said() {
        let command = Command::new("sh").args(["-c", "echo no such package >&2; exit 1"]);
        for tongue in [GO, CARGO] {
            let error = run(&command, tongue, &mut Progress::new().step("test")).unwrap_err().to_string();
            assert!(error.contains("no such package"), "{error}");
        }
        let command = Command::new("sh").args(["-c", "echo a warning >&2"]);
        run(&command, CARGO, &mut Progress::new().step("test")).unwrap();
    }

    #[test]
    fn only_lines_that_tell_what_is_compiled_count() {
        assert_eq!((GO.names)("net/http"), Some("net/http"));
        assert_eq!((CARGO.names)("   Compiling kube v3.1.0"), Some("kube v3.1.0"));
        for other in ["    Updating crates.io index", "  Downloaded kube v3.1.0", "warning: unused"] {
            assert_eq!((CARGO.names)(other), None);
        }
    }
}
