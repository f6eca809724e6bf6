//! The table of flags against etcd itself: each line takes the flags that it is said to have, and no others. It runs for each
//! folder in QUORATE_ETCD_BIN (separated by `:`) that holds an `etcd`, and for none if that is not set.

use std::{path::Path, process::Command};

use quorate_crds::flags::{ALLOWED, Flag, GATES, Gate, KINDS, Kind};

/// What etcd says when it is asked for its version with these flags, which it reads before; none if it does not take them.
fn version(etcd: &Path, flags: &[String]) -> Option<String> {
    let ran = Command::new(etcd).args(flags).arg("--version").output().expect("etcd can be started");
    ran.status.success().then(|| String::from_utf8(ran.stdout).expect("etcd says it in UTF-8"))
}

/// What etcd says when it is started with these flags on a folder that can't be.
fn refusal(etcd: &Path, flags: &[String]) -> String {
    let ran = Command::new(etcd).args(flags).arg("--data-dir=/dev/null/none").output().expect("etcd can be started");
    assert!(!ran.status.success(), "there is no such folder");
    String::from_utf8(ran.stderr).expect("etcd says it in UTF-8")
}

/// A value that fits the flag.
fn sample(name: &str, minor: u32) -> String {
    let (kind, _) = KINDS.iter().find(|(_, names)| names.contains(&name)).expect("each flag is of a kind");
    match kind {
        Kind::Number { .. } => "1000".into(),
        Kind::Duration | Kind::Period => "1h".into(),
        Kind::Switch => "true".into(),
        Kind::OneOf(words) | Kind::AnyCase(words) => words[0].into(),
        Kind::Gates => {
            let known = GATES.iter().filter(|gate| gate.is_on(minor));
            known.map(|Gate { name, .. }| format!("{name}=false")).collect::<Vec<_>>().join(" , ")
        }
        Kind::Origins => "https://app.example.com:443".into(),
        Kind::Token => "simple".into(),
        Kind::Text => "text".into(),
    }
}

fn takes_the_flags_of_its_line(etcd: &Path) {
    let said = version(etcd, &[]).expect("etcd tells its version");
    let minor: u32 = said.split('.').nth(1).and_then(|minor| minor.parse().ok()).expect("the version has a minor");
    for flag @ Flag { name, .. } in ALLOWED {
        let value = sample(name, minor);
        let told: Result<Vec<String>, _> = flag
            .on(minor, &value)
            .into_iter()
            .map(|said| said.map(|(name, value)| format!("--{name}={value}")))
            .collect();
        match told {
            Ok(flags) => assert!(version(etcd, &flags).is_some(), "3.{minor} does not take {flags:?}"),
            Err(_) => {
                for prefix in ["", "experimental-"] {
                    let flag = [format!("--{prefix}{name}={value}")];
                    assert!(version(etcd, &flag).is_none(), "3.{minor} takes {flag:?}");
                }
            }
        }
    }
    for gate @ Gate { name, .. } in GATES {
        let taken = version(etcd, &[format!("--feature-gates={name}=false")]).is_some();
        assert_eq!(taken, minor > 5 && gate.is_on(minor), "{name} on 3.{minor}");
    }
    let gates = Flag::find("feature-gates").expect("it may be set");
    for (value, fits) in [
        ("LeaseCheckpointPersist=true", false),
        ("LeaseCheckpointPersist=true,LeaseCheckpoint=true", true),
        ("LeaseCheckpointPersist=false", true),
        ("AllAlpha=true,LeaseCheckpoint=false", false),
        ("AllAlpha=true,LeaseCheckpoint=false,LeaseCheckpointPersist=false", true),
    ] {
        if minor == 5 && value.contains("AllAlpha") {
            continue;
        }
        let told = gates.on(minor, value).into_iter().map(|said| said.expect("each line has it"));
        let flags: Vec<String> = told.map(|(name, value)| format!("--{name}={value}")).collect();
        let said = refusal(etcd, &flags);
        assert_eq!(!said.contains("failed to verify flags"), fits, "3.{minor} with {flags:?}: {said}");
    }
}

#[test]
fn each_line_of_etcd_takes_the_flags_that_it_is_said_to_have() {
    let Some(folders) = std::env::var_os("QUORATE_ETCD_BIN") else {
        eprintln!("QUORATE_ETCD_BIN is not set: nothing was tried");
        return;
    };
    for folder in std::env::split_paths(&folders) {
        takes_the_flags_of_its_line(&folder.join("etcd"));
    }
}
