//! What a person at a terminal sees of a command that takes long: a bar that says how far it is. In what goes into pipes there is
//! nothing of it, and in neither case is it in the result.

use std::fs::File;
use std::io::Read as _;
use std::process::Output;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use serde_json::Value;
use tempfile::TempDir;

use crate::agent::command;
use crate::fake::{Mood, Served};
use crate::recorded::{Recorded, address};
use crate::snapshot::large;

/// What a bar is drawn with.
const DRAWN: [char; 2] = ['█', '░'];
/// How long a bar may take to come: it takes milliseconds, and machines may be very busy.
const PATIENCE: Duration = Duration::from_mins(1);

/// The commands that take long, on this backup and with what they need beside it: what moves data, and what reads all manifests.
fn long_ones(recorded: &Recorded, member: &Served, folder: &TempDir) -> [Vec<String>; 7] {
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let whose = ["--lineage", "blue", "--output", "json", "--store"].map(str::to_owned);
    let store = address(recorded.folder.path());
    [
        ("snapshot", Some(("--endpoint", member.url.clone()))),
        ("copy", Some(("--target", address(folder.path())))),
        ("verify", Some(("--scratch", at("")))),
        ("restore", Some(("--database", at("db")))),
        ("list", None),
        ("inspect", None),
        ("prune", Some(("--keep-last", "1d".to_owned()))),
    ]
    .map(|(name, own)| {
        let own = own.into_iter().flat_map(|(option, value)| [option.to_owned(), value]);
        [name.to_owned()].into_iter().chain(whose.clone()).chain([store.clone()]).chain(own).collect()
    })
}

/// Runs it with a terminal for all but its result; `look` is shown all that has come there, each time that more comes.
fn on_a_terminal(arguments: &[String], mut look: impl FnMut(&str)) -> (Output, String) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = openpt(flags).unwrap();
    unlockpt(&terminal).unwrap();
    let users = ioctl_tiocgptpeer(&terminal, flags).unwrap();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    // The command is dropped with this, and with it our own hold on the end that the user has.
    let child = command(&arguments).env("TERM", "xterm").stderr(users).spawn().unwrap();
    let (mut terminal, mut shown, mut piece) = (File::from(terminal), Vec::new(), [0; 4096]);
    // Linux says that this fails once nobody has the other end any more.
    while let Ok(count @ 1..) = terminal.read(&mut piece) {
        shown.extend_from_slice(&piece[..count]);
        look(&String::from_utf8_lossy(&shown));
    }
    (child.wait_with_output().unwrap(), String::from_utf8_lossy(&shown).into_owned())
}

/// Whether there is a line with the name and a bar, and how much there is to do.
fn has_bar(shown: &str, name: &str) -> bool {
    shown.split(['\r', '\n']).any(|line| line.contains(name) && line.contains(DRAWN) && line.contains(" of "))
}

fn is_json(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
}

#[tokio::test]
async fn whoever_is_at_a_terminal_is_shown_how_far_a_command_is() {
    let recorded = Recorded::with_deltas(&[10, 40]).await;
    let (member, folder) = (Served::start(Mood::Sound, large(0)), tempfile::tempdir().unwrap());
    for arguments in long_ones(&recorded, &member, &folder) {
        let (output, shown) = on_a_terminal(&arguments, |_| {});
        is_json(&output);
        assert!(has_bar(&shown, &arguments[0]), "{}: {shown:?}", arguments[0]);
    }
}

#[test]
fn the_bar_is_there_while_the_work_is_done() {
    let (store, pieces) = (tempfile::tempdir().unwrap(), large(16 << 20));
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    // In the middle the member waits until somebody has seen a bar.
    let halfway = (8 << 20) / pieces(0).unwrap().len();
    let member = Served::start(
        Mood::Sound,
        Arc::new(move |number| {
            if number == halfway {
                let seen = wait.lock().unwrap().recv_timeout(PATIENCE);
                assert_eq!(seen, Err(mpsc::RecvTimeoutError::Disconnected), "nobody has seen a bar");
            }
            pieces(number)
        }),
    );
    let address = address(store.path());
    let arguments = ["snapshot", "--endpoint", &member.url, "--store", &address, "--lineage", "blue", "-o", "json"];
    let mut go_on = Some(go_on);
    let (output, shown) = on_a_terminal(&arguments.map(str::to_owned), |shown| {
        if has_bar(shown, "snapshot") {
            go_on = None;
        }
    });
    is_json(&output);
    assert!(go_on.is_none(), "{shown:?}");
    // At its end nothing of it is left: the line is cleared, and nothing is drawn any more.
    let (_, last) = shown.rsplit_once('\r').unwrap();
    assert!(!last.contains(DRAWN), "{shown:?}");
}

#[tokio::test]
async fn pipes_get_the_result_and_nothing_of_a_bar() {
    let recorded = Recorded::with_deltas(&[10, 40]).await;
    let (member, folder) = (Served::start(Mood::Sound, large(0)), tempfile::tempdir().unwrap());
    for arguments in long_ones(&recorded, &member, &folder) {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let output = command(&arguments).env("TERM", "xterm").output().unwrap();
        is_json(&output);
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text);
            assert!(!text.contains(DRAWN) && !text.contains(['\r', '\u{1b}']), "{}: {text:?}", arguments[0]);
        }
    }
}
