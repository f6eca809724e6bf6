//! A store that fails for a moment, as each does now and then: who takes, lists, proves or restores a backup does not notice.

use super::Server;
use super::google::{Double, Trouble};
use crate::database::{events_after, small, tail};
use crate::fake::{Mood, Served};
use crate::snapshot::large;

pub fn are_passed_over(trouble: Trouble) {
    let server = Double::troubled(trouble);
    let place = server.place("troubled");
    // What is stored of it are two parts.
    let member = Served::start(Mood::Sound, large(24 << 20));
    let taken = place.run("snapshot", &["--endpoint", &member.url, "--lineage", "blue"]).json();
    assert_eq!(taken["revision"].as_u64(), Some(7), "{taken}");
    assert!(server.troubled_requests() >= 2, "there was no trouble");
    assert_eq!(server.parts_left(), Some(0));

    let listed = place.run("list", &[]).json();
    assert_eq!((listed[0]["state"].as_str(), listed.as_array().unwrap().len()), (Some("whole"), 1), "{listed}");
    let folder = tempfile::tempdir().unwrap();
    let (scratch, database) = (folder.path().to_str().unwrap(), folder.path().join("db"));
    let proved = place.run("verify", &["--lineage", "blue", "--strict", "--scratch", scratch]).json();
    assert_eq!(proved["revision"].as_u64(), Some(7), "{proved}");
    place.run("restore", &["--lineage", "blue", "--database", database.to_str().unwrap()]).json();
    assert_eq!(tail(&database), tail(&small()));
    assert!(events_after(&database, 0) == events_after(&small(), 0));
}
