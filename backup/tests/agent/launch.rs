//! `quorate-agent launch` from outside: its files, its port, its signals, and what it becomes.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::process::{AGENT, FIRST_SEGMENT, MEMBER, Pod, VOLUME, ask, fixture, get, report, reports, until};
use quorate_backup::launch::{Reason, State};
use quorate_backup::ticket::{Start, Ticket};

/// The exit code of the script that stands in for etcd: who sees it knows that the process has become it.
const FAKE_EXIT: i32 = 42;

/// Puts a volume and a ticket into a state that is to be refused.
type Prepare<'a> = &'a dyn Fn(&Pod);

#[test]
fn a_create_on_a_new_volume_becomes_etcd_with_the_tickets_flags_and_no_others() {
    let pod = Pod::new().with("ETCD_NAME", "other").with("ETCD_DATA_DIR", "/tmp").with("GOMEMLIMIT", "1GiB");
    pod.put("lost+found/x", "");
    let ticket = pod.ticket(Start::Create);
    pod.show(&ticket);
    let mut launcher = pod.launch();
    assert_eq!(launcher.ends().code(), Some(FAKE_EXIT));
    let record = pod.record();
    let arguments: Vec<_> = record.lines().filter_map(|line| line.strip_prefix("argument ")).collect();
    assert_eq!(arguments, ticket.flags);
    assert!(record.contains("variable GOMEMLIMIT=1GiB\n"), "{record}");
    assert!(!record.contains("variable ETCD_") && !record.contains("variable QUORATE_"), "{record}");
    assert_eq!(pod.marker().unwrap(), r#"{"format":1,"member":"blue-0","volume":"v-1"}"#);
    assert_eq!(fs::metadata(pod.volume().join("data")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn without_a_ticket_it_waits_and_answers_and_takes_the_one_that_comes() {
    let pod = Pod::new();
    let mut launcher = pod.launch();
    let address = launcher.address();
    let waiting = report(address);
    assert_eq!((waiting.state, waiting.reason), (State::Waiting, Reason::NoTicket));
    assert_eq!(get(address, "/livez").0, 200);
    assert_eq!(get(address, "/readyz").0, 503);
    assert_eq!(get(address, "/metrics").0, 404);
    assert_eq!(ask(address, "POST", "/quorate", "x").0, 405);
    pod.show_text("\n");
    assert_eq!(report(address).since, waiting.since);
    assert!(!pod.was_started());
    pod.show(&pod.ticket(Start::Create));
    assert_eq!(launcher.ends().code(), Some(FAKE_EXIT));
}

#[test]
fn an_empty_volume_is_marked_while_it_waits_and_created_on_only_as_long_as_it_carries_that_mark() {
    let pod = Pod::new();
    let mut launcher = pod.launch();
    let waiting = report(launcher.address());
    let mark = waiting.mark.unwrap();
    assert_eq!(waiting.reason, Reason::NoTicket);
    let marker = format!(r#"{{"format":1,"member":"blue-0","volume":"v-1","mark":"{mark}"}}"#);
    assert_eq!(pod.marker().unwrap(), marker);
    let create = Ticket { mark: Some(mark.clone()), ..pod.ticket(Start::Create) };
    pod.show(&create);
    assert_eq!(launcher.ends().code(), Some(FAKE_EXIT));

    // Started once more, as after its end in the first milliseconds; then by a pod that comes to wait there again.
    assert_eq!(pod.launch().ends().code(), Some(FAKE_EXIT));
    assert_eq!(pod.marker().unwrap(), marker);
    fs::remove_file(pod.path("ticket")).unwrap();
    let mut another = pod.launch();
    assert_eq!(report(another.address()).mark, Some(mark.clone()));
    another.signal("-TERM");
    another.ends();

    // Emptied: with the ticket there nothing is marked, and without it another mark is given.
    fs::remove_file(pod.path("record")).unwrap();
    fs::remove_dir_all(pod.volume()).unwrap();
    fs::create_dir(pod.volume()).unwrap();
    pod.show(&create);
    let mut launcher = pod.launch();
    let refused = reports(launcher.address(), Reason::VolumeIsEmpty);
    assert!(refused.message.contains("emptied after blue-0 had been told to create on it"), "{}", refused.message);
    assert!(!pod.was_started() && pod.marker().is_none());
    launcher.signal("-TERM");
    launcher.ends();
    fs::remove_file(pod.path("ticket")).unwrap();
    let mut launcher = pod.launch();
    let address = launcher.address();
    assert_ne!(report(address).mark.unwrap(), mark);
    pod.show(&create);
    reports(address, Reason::VolumeIsEmpty);
    assert!(!pod.was_started());
}

#[test]
fn a_volume_that_can_not_be_marked_is_told_and_nobody_says_that_it_waits() {
    let pod = Pod::new();
    pod.put("quorate.json", "not JSON");
    let mut launcher = pod.launch();
    let address = launcher.address();
    assert_eq!(report(address).reason, Reason::VolumeUnreadable);
    fs::remove_file(pod.volume().join("quorate.json")).unwrap();
    assert!(reports(address, Reason::NoTicket).mark.is_some());
}

#[test]
fn a_volume_is_marked_before_it_is_said_to_wait_also_where_the_first_ticket_was_none() {
    let pod = Pod::new();
    pod.show_text(&" ".repeat(100_000));
    let mut launcher = pod.launch();
    let address = launcher.address();
    assert_eq!(reports(address, Reason::BadTicket).mark, None);
    pod.show_text("");
    assert!(reports(address, Reason::NoTicket).mark.is_some());
}

#[test]
fn each_refusal_says_its_reason_waits_and_touches_nothing() {
    let change = |change: fn(&mut Ticket)| {
        move |pod: &Pod| {
            let mut ticket = pod.ticket(Start::Create);
            change(&mut ticket);
            pod.show(&ticket);
        }
    };
    let on = |start: Start, prepare: fn(&Pod)| {
        move |pod: &Pod| {
            prepare(pod);
            pod.show(&pod.ticket(start));
        }
    };
    let cases: [(Reason, Prepare<'_>); 13] = [
        (Reason::BadTicket, &|pod: &Pod| pod.show_text("{}")),
        (Reason::BadTicket, &|pod: &Pod| pod.show_text(&" ".repeat(100_000))),
        (Reason::BadTicket, &change(|ticket| ticket.flags.push("--wal-dir=/tmp".into()))),
        (Reason::OtherMember, &change(|ticket| ticket.member = "blue-1".into())),
        (Reason::OtherVolume, &change(|ticket| ticket.volume = "v-2".into())),
        (Reason::WrongVersion, &change(|ticket| ticket.version = "3.7.3".into())),
        (Reason::VolumeHasOtherData, &on(Start::Create, |pod| pod.put("data/x", ""))),
        (Reason::VolumeHasOtherData, &on(Start::Resume, |pod| pod.carry("blue-1", VOLUME, "running-3.6.16.wal"))),
        (Reason::VolumeHasOtherData, &on(Start::Create, |pod| pod.carry(MEMBER, "v-2", "fresh-3.6.16.wal"))),
        (Reason::VolumeIsEmpty, &on(Start::Resume, |_| ())),
        (
            Reason::VolumeHasNoEntry,
            &on(Start::Resume, |pod| {
                pod.carry(MEMBER, VOLUME, "running-3.6.16.wal");
                fs::remove_dir_all(pod.volume().join("data")).unwrap();
            }),
        ),
        (Reason::VolumeHasNoEntry, &on(Start::Resume, |pod| pod.carry(MEMBER, VOLUME, "fresh-3.6.16.wal"))),
        (Reason::VolumeUnreadable, &on(Start::Resume, |pod| pod.put("quorate.json", "not JSON"))),
    ];
    for (number, (reason, prepare)) in cases.iter().enumerate() {
        let pod = Pod::new();
        prepare(&pod);
        let before = tree(&pod);
        let mut launcher = pod.launch();
        let address = launcher.address();
        let refused = reports(address, *reason);
        assert_eq!(refused.state, State::Refused, "case {number}");
        assert!(!refused.message.is_empty());
        assert_eq!(get(address, "/livez").0, 200);
        assert_eq!(get(address, "/readyz").0, 503);
        assert_eq!(tree(&pod), before, "case {number}");
        launcher.signal("-TERM");
        assert_eq!(launcher.ends().code(), Some(0), "case {number}");
        assert!(!pod.was_started());
    }
}

#[test]
fn a_binary_that_is_missing_broken_or_mute_is_refused() {
    let mut missing = Pod::new();
    missing.etcd = missing.path("nothing");
    let mut broken = Pod::new();
    broken.etcd = broken.path("broken");
    fs::write(&broken.etcd, "\u{7f}ELF").unwrap();
    fs::set_permissions(&broken.etcd, fs::Permissions::from_mode(0o755)).unwrap();
    let mute = Pod::new().with("FAKE_VERSION", "");
    let failing = Pod::new().with("FAKE_VERSION_EXIT", "1");
    for (pod, reason) in [
        (missing, Reason::BinaryMissing),
        (broken, Reason::BinaryMissing),
        (mute, Reason::WrongVersion),
        (failing, Reason::WrongVersion),
    ] {
        pod.show(&pod.ticket(Start::Create));
        let mut launcher = pod.launch();
        reports(launcher.address(), reason);
        assert!(!pod.was_started() && pod.marker().is_none());
    }
}

#[test]
fn a_signal_while_it_waits_ends_it_at_once_with_success() {
    for name in ["-TERM", "-INT"] {
        let pod = Pod::new();
        let mut launcher = pod.launch();
        launcher.address();
        launcher.signal(name);
        assert_eq!(launcher.ends().code(), Some(0));
    }
    // Also while etcd is asked for its version and does not answer.
    let pod = Pod::new().with("FAKE_HANGS", "1");
    pod.show(&pod.ticket(Start::Create));
    let mut launcher = pod.launch();
    launcher.address();
    launcher.signal("-TERM");
    assert_eq!(launcher.ends().code(), Some(0));
}

#[test]
fn the_port_is_free_once_it_has_become_etcd() {
    let pod = Pod::new().with("FAKE_STAYS", "1");
    let mut launcher = pod.launch();
    let address = launcher.address();
    // A caller that hangs on must not keep the port.
    let _caller = TcpStream::connect(address).unwrap();
    pod.show(&pod.ticket(Start::Create));
    pod.record();
    TcpListener::bind(address).unwrap();
    assert!(launcher.child.try_wait().unwrap().is_none());
}

#[test]
fn a_port_that_is_taken_keeps_nobody_from_starting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut pod = Pod::new();
    pod.listen = taken.local_addr().unwrap().to_string();
    let mut launcher = pod.launch();
    launcher.says("failed to listen");
    pod.show(&pod.ticket(Start::Create));
    assert_eq!(launcher.ends().code(), Some(FAKE_EXIT));

    let mut waiting = Pod::new();
    waiting.listen.clone_from(&pod.listen);
    let mut launcher = waiting.launch();
    launcher.says("failed to listen");
    drop(taken);
    assert_eq!(report(launcher.address()).reason, Reason::NoTicket);
}

#[test]
fn a_log_without_an_entry_is_deleted_on_a_create_of_its_own_member_only() {
    for version in ["3.5.35", "3.6.16", "3.7.3"] {
        let log = format!("fresh-{version}.wal");
        let own = Pod::new();
        own.carry(MEMBER, VOLUME, &log);
        own.show(&own.ticket(Start::Create));
        assert_eq!(own.launch().ends().code(), Some(FAKE_EXIT));
        assert!(!own.volume().join("data/member").exists());

        for (member, volume) in [("blue-1", VOLUME), (MEMBER, "v-2")] {
            let foreign = Pod::new();
            foreign.carry(member, volume, &log);
            foreign.show(&foreign.ticket(Start::Create));
            let mut launcher = foreign.launch();
            reports(launcher.address(), Reason::VolumeHasOtherData);
            assert!(foreign.volume().join(FIRST_SEGMENT).exists());
        }
    }
}

#[test]
fn a_log_with_an_entry_is_started_on_and_never_deleted() {
    for log in ["seeded-3.5.35.wal", "seeded-3.7.3.wal", "running-3.6.16.wal"] {
        for start in [Start::Create, Start::Resume] {
            let pod = Pod::new();
            pod.carry(MEMBER, VOLUME, log);
            let before = tree(&pod);
            pod.show(&pod.ticket(start));
            assert_eq!(pod.launch().ends().code(), Some(FAKE_EXIT));
            assert_eq!(tree(&pod), before);
        }
    }
}

#[test]
fn a_volume_swapped_for_an_empty_one_is_refused_until_the_right_one_is_back() {
    let pod = Pod::new();
    pod.show(&pod.ticket(Start::Resume));
    let mut launcher = pod.launch();
    let since = reports(launcher.address(), Reason::VolumeIsEmpty).since;
    assert!(since > 0);
    // Complete at once, as a mount would be.
    let right = Pod::new();
    right.carry(MEMBER, VOLUME, "running-3.6.16.wal");
    fs::rename(right.volume().join("data"), pod.volume().join("data")).unwrap();
    fs::rename(right.volume().join("quorate.json"), pod.volume().join("quorate.json")).unwrap();
    assert_eq!(launcher.ends().code(), Some(FAKE_EXIT));
    let told = launcher.whole_log().iter().filter(|line| line.contains("VolumeIsEmpty")).count();
    assert_eq!(told, 1, "{:#?}", launcher.log);
}

#[test]
fn one_identity_is_never_created_on_two_volumes() {
    let first = Pod::new();
    first.show(&first.ticket(Start::Create));
    assert_eq!(first.launch().ends().code(), Some(FAKE_EXIT));
    // The pod came back with another claim of the same name: the ticket still names the first.
    let second = Pod::new().with("QUORATE_VOLUME", "v-2");
    second.show(&second.ticket(Start::Create));
    let mut launcher = second.launch();
    reports(launcher.address(), Reason::OtherVolume);
    assert!(second.marker().is_none() && !second.was_started());
    // And a ticket for the second volume does not start on the first.
    let third = Pod::new().with("QUORATE_VOLUME", "v-2");
    fs::write(third.volume().join("quorate.json"), first.marker().unwrap()).unwrap();
    third.show(&Ticket { volume: "v-2".into(), ..third.ticket(Start::Create) });
    let mut launcher = third.launch();
    reports(launcher.address(), Reason::VolumeHasOtherData);
    assert!(!third.was_started());
}

#[test]
fn a_refused_ticket_gives_way_to_a_better_one_and_to_none() {
    let pod = Pod::new();
    pod.show(&pod.ticket(Start::Resume));
    let mut launcher = pod.launch();
    let address = launcher.address();
    reports(address, Reason::VolumeIsEmpty);
    pod.show_text("");
    reports(address, Reason::NoTicket);
    pod.show(&Ticket { version: "3.5.35".into(), ..pod.ticket(Start::Create) });
    reports(address, Reason::WrongVersion);
    pod.show(&pod.ticket(Start::Create));
    assert_eq!(launcher.ends().code(), Some(FAKE_EXIT));
}

#[test]
fn a_volume_that_another_etcd_still_holds_is_left_alone_until_that_has_ended() {
    let pod = Pod::new().with("FAKE_STAYS", "1");
    pod.show(&pod.ticket(Start::Create));
    let mut old = pod.launch();
    pod.record();
    pod.put(FIRST_SEGMENT, fs::read(fixture("fresh-3.6.16.wal")).unwrap());
    fs::remove_file(pod.path("record")).unwrap();

    let mut new = pod.launch();
    reports(new.address(), Reason::VolumeInUse);
    assert!(pod.volume().join(FIRST_SEGMENT).exists());
    old.child.kill().unwrap();
    old.ends();
    pod.record();
    assert!(!pod.volume().join(FIRST_SEGMENT).exists());
    assert!(new.child.try_wait().unwrap().is_none());
}

#[test]
fn install_puts_a_whole_copy_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("quorate-agent");
    fs::write(&target, "an older one").unwrap();
    fs::write(folder.path().join(".quorate-agent.new"), "from a crash").unwrap();
    let install = |path: &std::path::Path| Command::new(AGENT).arg("install").arg(path).output().unwrap();
    assert!(install(&target).status.success());
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o7777, 0o755);
    assert_eq!(fs::read(&target).unwrap(), fs::read(AGENT).unwrap());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    until("the copy runs", || Command::new(&target).arg("--version").output().ok().filter(|run| run.status.success()));

    let failed = install(&folder.path().join("missing/quorate-agent"));
    assert!(!failed.status.success());
    assert!(String::from_utf8_lossy(&failed.stderr).contains("missing/quorate-agent"));
}

#[test]
fn the_help_names_every_flag_reason_and_variable() {
    let help = Command::new(AGENT).args(["launch", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for word in [
        "--ticket",
        "--volume",
        "--listen",
        "--etcd",
        "QUORATE_MEMBER",
        "QUORATE_VOLUME",
        "VolumeHasNoEntry",
        "[::]:2381",
    ] {
        assert!(help.contains(word), "{word} is not in:\n{help}");
    }
    let unknown = Command::new(AGENT).args(["launch"]).env_remove("QUORATE_MEMBER").output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
}

/// Every file of the volume with its length.
fn tree(pod: &Pod) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut folders = vec![pod.volume()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            found.push((path.display().to_string(), if metadata.is_file() { metadata.len() } else { 0 }));
            if metadata.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort();
    found
}
