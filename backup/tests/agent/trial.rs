//! Trials of a binary: its version and its flags, and nothing started.

use std::fs;
use std::process::Command;

use crate::process::{AGENT, fixture};

/// Tries the stand-in with these flags; what it ended with, and what it reported.
fn tried(version: &str, flags: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let (report, record) = (folder.path().join("report"), folder.path().join("record"));
    let output = Command::new(AGENT)
        .args(["try", "--etcd-version", version, "--etcd"])
        .arg(fixture("etcd"))
        .arg("--report")
        .arg(&report)
        .arg("--")
        .args(flags)
        .env("FAKE_RECORD", &record)
        .output()
        .unwrap();
    assert!(!record.exists(), "etcd was started");
    (output.status.code(), fs::read_to_string(report).unwrap_or_default())
}

#[test]
fn the_right_version_that_takes_the_flags_passes() {
    assert_eq!(tried("3.6.16", &["--name=a", "--data-dir=/var/lib/etcd/data"]), (Some(0), String::new()));
    assert_eq!(tried("3.6.16", &[]), (Some(0), String::new()));
}

#[test]
fn another_version_is_named() {
    let (code, said) = tried("3.7.3", &["--unknown=1"]);
    assert_eq!(code, Some(1));
    assert!(said.starts_with("WrongVersion: ") && said.contains("3.7.3") && said.contains("3.6.16"), "{said}");
}

#[test]
fn a_flag_that_it_does_not_take_is_named() {
    let (code, said) = tried("3.6.16", &["--unknown=1"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("flag provided but not defined: -unknown"), "{said}");
}

#[test]
fn a_binary_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let status = Command::new(AGENT)
        .args(["try", "--etcd-version=3.6.16", "--etcd=/nowhere/etcd", "--report"])
        .arg(&report)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(fs::read_to_string(report).unwrap().starts_with("BinaryMissing: "));
}
