//! Volumes of all kinds against both kinds of tickets: the whole table, on real folders.

use super::marker::{FILE as MARKER, UNFINISHED as MARKER_UNFINISHED};
use super::*;
use std::path::Path;

const OWN: &str = r#"{"format":1,"member":"blue-0","volume":"v-1"}"#;
const BEGUN: &str = r#"{"format":1,"member":"blue-0","volume":"v-1","restore":"begun"}"#;
const RESTORED: &str = r#"{"format":1,"member":"blue-0","volume":"v-1","restore":{"done":"3.6.16"}}"#;
const FIRST_SEGMENT: &str = "data/member/wal/0000000000000000-0000000000000000.wal";
/// Not provably empty, and so taken for entries.
const SOMETHING: &[u8] = &[1; 64];

const STARTS: [Start; 3] = [Start::Create, Start::Restored, Start::Resume];

fn identity() -> Identity {
    Identity { member: "blue-0".into(), volume: "v-1".into() }
}

struct Disk(tempfile::TempDir);

impl Disk {
    fn with(files: &[(&str, &[u8])]) -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        for (name, bytes) in files {
            let path = disk.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        disk
    }

    fn admit(&self, start: Start) -> Result<(), Reason> {
        self.admit_marked(start, None)
    }

    fn admit_marked(&self, start: Start, mark: Option<&str>) -> Result<(), Reason> {
        self.volume().admit(start, mark.map(VolumeMark::from).as_ref()).map(drop).map_err(|refusal| refusal.reason)
    }

    fn volume(&self) -> Volume {
        Volume::new(self.0.path().to_owned(), identity())
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = walk(self.0.path())
            .iter()
            .map(|path| path.strip_prefix(self.0.path()).unwrap().to_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    fn marker(&self) -> String {
        fs::read_to_string(self.0.path().join(MARKER)).unwrap()
    }
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(walk(&path));
        }
        found.push(path);
    }
    found
}

/// Refused for this reason, and nothing on the volume has been touched.
fn refused(files: &[(&str, &[u8])], start: Start, reason: Reason) {
    let disk = Disk::with(files);
    let before = disk.files();
    assert_eq!(disk.admit(start), Err(reason), "{start} on {before:?}");
    assert_eq!(disk.files(), before);
}

#[test]
fn a_create_marks_a_new_volume() {
    let new: [&[(&str, &[u8])]; 3] = [&[], &[("lost+found/x", b"")], &[(MARKER_UNFINISHED, b"{")]];
    for files in new {
        let disk = Disk::with(files);
        disk.admit(Start::Create).unwrap();
        assert_eq!(disk.marker(), OWN);
        assert!(disk.files().contains(&DATA_FOLDER.to_owned()));
        assert!(!disk.files().contains(&MARKER_UNFINISHED.to_owned()));
        // The same ticket again, after a crash before etcd wrote anything.
        disk.admit(Start::Create).unwrap();
        assert_eq!(disk.admit(Start::Resume), Err(Reason::VolumeHasNoEntry));
    }
    let disk = Disk::with(&[]);
    fs::create_dir(disk.0.path().join(DATA_FOLDER)).unwrap();
    disk.admit(Start::Create).unwrap();
    assert_eq!(disk.marker(), OWN);
}

const MARKED: &str = r#"{"format":1,"member":"blue-0","volume":"v-1","mark":"a1"}"#;

#[test]
fn an_empty_volume_is_marked_once_and_what_holds_something_never() {
    let disk = Disk::with(&[("lost+found/x", b"")]);
    let mark = disk.volume().greet().unwrap().unwrap();
    assert_eq!(disk.marker(), MARKED.replace("a1", mark.as_str()));
    assert_eq!(disk.volume().greet().unwrap(), Some(mark));
    for (files, mark) in [
        (&[(MARKER, MARKED.as_bytes()), (FIRST_SEGMENT, SOMETHING)][..], Some("a1")),
        (&[(MARKER, OWN.as_bytes())], None),
        (&[(MARKER, RESTORED.as_bytes()), (FIRST_SEGMENT, SOMETHING)], None),
        (&[(MARKER, BEGUN.as_bytes())], None),
        (&[(MARKER, MARKED.replace("v-1", "v-2").as_bytes()), (FIRST_SEGMENT, b"")], None),
        (&[(MARKER, MARKED.replace("blue-0", "blue-1").as_bytes())], None),
        (&[("photo.jpg", b"")], None),
    ] {
        let disk = Disk::with(files);
        let before = disk.files();
        assert_eq!(disk.volume().greet().unwrap(), mark.map(VolumeMark::from));
        assert_eq!(disk.files(), before);
    }
    assert_eq!(Disk::with(&[(MARKER, b"{}")]).volume().greet().unwrap_err().reason, Reason::VolumeUnreadable);

    // Of this member, in a pod that was made for another claim of the same name: nobody was started there.
    let waited_on = MARKED.replace("v-1", "v-2");
    let disk = Disk::with(&[(MARKER, waited_on.as_bytes())]);
    let mark = disk.volume().greet().unwrap().unwrap();
    assert_eq!(disk.marker(), MARKED.replace("a1", mark.as_str()));
    let disk = Disk::with(&[(MARKER, waited_on.as_bytes())]);
    assert_eq!(disk.admit_marked(Start::Create, Some("a1")), Err(Reason::VolumeIsEmpty));
    disk.admit(Start::Create).unwrap();
    assert_eq!(disk.marker(), OWN);
}

#[test]
fn a_create_with_a_mark_takes_no_volume_that_was_emptied_since() {
    let log_without_entry: &[(&str, &[u8])] = &[(MARKER, MARKED.as_bytes()), (FIRST_SEGMENT, b"")];
    for files in [&[(MARKER, MARKED.as_bytes())][..], log_without_entry] {
        let disk = Disk::with(files);
        disk.admit_marked(Start::Create, Some("a1")).unwrap();
        disk.admit_marked(Start::Create, Some("a1")).unwrap();
        assert_eq!(disk.marker(), MARKED, "it keeps its mark for the next time");
        let before = Disk::with(files);
        assert_eq!(before.admit_marked(Start::Create, Some("b2")), Err(Reason::VolumeIsEmpty));
        assert_eq!(before.files(), Disk::with(files).files());
    }
    let emptied: [&[(&str, &[u8])]; 3] = [&[], &[("lost+found/x", b"")], &[(MARKER, OWN.as_bytes())]];
    for files in emptied {
        let disk = Disk::with(files);
        let before = disk.files();
        assert_eq!(disk.admit_marked(Start::Create, Some("a1")), Err(Reason::VolumeIsEmpty));
        assert_eq!(disk.files(), before);
    }
    // It has begun: the mark has done its work.
    Disk::with(&[(MARKER, MARKED.as_bytes()), (FIRST_SEGMENT, SOMETHING)])
        .admit_marked(Start::Create, Some("b2"))
        .unwrap();
}

#[test]
fn a_create_deletes_only_a_log_without_an_entry() {
    for log in [&b""[..], &[0; 4096]] {
        let disk = Disk::with(&[(MARKER, OWN.as_bytes()), (FIRST_SEGMENT, log), ("data/member/snap/db", b"x")]);
        assert_eq!(disk.admit(Start::Resume), Err(Reason::VolumeHasNoEntry));
        assert_eq!(disk.files().len(), 7, "{:?}", disk.files());
        disk.admit(Start::Create).unwrap();
        assert_eq!(disk.files(), [DATA_FOLDER, MARKER]);
    }
    let unfinished = Disk::with(&[(MARKER, OWN.as_bytes()), ("data/member/snap/db", b"x"), ("data.discarded/x", b"x")]);
    unfinished.admit(Start::Create).unwrap();
    assert_eq!(unfinished.files(), [DATA_FOLDER, MARKER]);
    for start in STARTS {
        let disk = Disk::with(&[(MARKER, OWN.as_bytes()), (FIRST_SEGMENT, SOMETHING)]);
        let before = disk.files();
        disk.admit(start).unwrap();
        assert_eq!(disk.files(), before);
    }
}

#[test]
fn what_is_not_this_members_is_refused_and_untouched() {
    let other_member = OWN.replace("blue-0", "blue-1");
    let other_volume = OWN.replace("v-1", "v-2");
    for start in STARTS {
        refused(&[("data/x", b"")], start, Reason::VolumeHasOtherData);
        refused(&[("photo.jpg", b"")], start, Reason::VolumeHasOtherData);
        refused(&[("data", b"a file")], start, Reason::VolumeHasOtherData);
        for foreign in [&other_member, &other_volume] {
            refused(&[(MARKER, foreign.as_bytes())], start, Reason::VolumeHasOtherData);
            // Also a log without an entry, which under the own marker would be deleted.
            refused(&[(MARKER, foreign.as_bytes()), (FIRST_SEGMENT, b"")], start, Reason::VolumeHasOtherData);
        }
    }
    refused(&[], Start::Resume, Reason::VolumeIsEmpty);
    refused(&[("lost+found/x", b"")], Start::Resume, Reason::VolumeIsEmpty);
}

/// An operator that was taken back to an earlier release finds what the later one wrote.
#[test]
fn what_a_later_launcher_wrote_besides_is_left_unread() {
    let later = OWN.replace('}', r#","later":{"a":1}}"#);
    let disk = Disk::with(&[(MARKER, later.as_bytes()), (FIRST_SEGMENT, SOMETHING)]);
    disk.admit(Start::Resume).unwrap();
}

#[test]
fn what_cannot_be_understood_is_refused_and_untouched() {
    let newer = OWN.replace(r#""format":1"#, r#""format":2"#);
    let long = format!("{OWN}{}", " ".repeat(5000));
    let snapshot = "data/member/snap/0000000000000002-0000000000000064.snap";
    for start in STARTS {
        for marker in ["", "{}", newer.as_str(), long.as_str()] {
            refused(&[(MARKER, marker.as_bytes())], start, Reason::VolumeUnreadable);
        }
        refused(&[("quorate.json/x", b"")], start, Reason::VolumeUnreadable);
        refused(&[(MARKER, OWN.as_bytes()), (snapshot, b"")], start, Reason::VolumeUnreadable);
        refused(&[(MARKER, OWN.as_bytes()), ("data", b"a file")], start, Reason::VolumeUnreadable);
    }
    let nowhere = Volume::new("/nonexistent".into(), identity()).admit(Start::Create, None).unwrap_err();
    assert_eq!(nowhere.reason, Reason::VolumeUnreadable);
}

#[test]
fn what_was_restored_is_started_by_its_ticket_and_by_no_other() {
    let restored: &[(&str, &[u8])] = &[(MARKER, RESTORED.as_bytes()), (FIRST_SEGMENT, SOMETHING)];
    for start in [Start::Create, Start::Resume] {
        refused(restored, start, Reason::VolumeHasOtherData);
        refused(&[(MARKER, BEGUN.as_bytes()), (FIRST_SEGMENT, SOMETHING)], start, Reason::VolumeHasOtherData);
        refused(&[(MARKER, BEGUN.as_bytes())], start, Reason::VolumeHasOtherData);
    }
    let disk = Disk::with(restored);
    disk.admit(Start::Restored).unwrap();
    assert_eq!(disk.marker(), OWN, "it is spent: what is restored here later is not this member's state");
    // From now on it is as any other: killed before its first answer, resumed.
    disk.admit(Start::Restored).unwrap();
    disk.admit(Start::Resume).unwrap();
}

#[test]
fn without_all_of_what_was_restored_nothing_starts() {
    let absent: [&[(&str, &[u8])]; 6] = [
        &[],
        &[(MARKER, BEGUN.as_bytes())],
        &[(MARKER, BEGUN.as_bytes()), (FIRST_SEGMENT, SOMETHING)],
        &[(MARKER, RESTORED.as_bytes())],
        &[(MARKER, RESTORED.as_bytes()), (FIRST_SEGMENT, b"")],
        // Spent, and gone: a create would begin with nothing under the name of what was restored.
        &[(MARKER, OWN.as_bytes())],
    ];
    for files in absent {
        refused(files, Start::Restored, Reason::VolumeNotRestored);
    }
    let others = RESTORED.replace("v-1", "v-2");
    refused(&[(MARKER, others.as_bytes()), (FIRST_SEGMENT, SOMETHING)], Start::Restored, Reason::VolumeHasOtherData);
}

#[test]
fn a_volume_in_use_is_refused_until_it_is_let_go() {
    let disk = Disk::with(&[]);
    let volume = Volume::new(disk.0.path().to_owned(), identity());
    let held = volume.admit(Start::Create, None).unwrap();
    assert_eq!(disk.admit(Start::Create), Err(Reason::VolumeInUse));
    drop(held);
    disk.admit(Start::Create).unwrap();
}

#[test]
fn to_resume_it_is_enough_that_the_last_etcd_has_closed_its_database() {
    let disk = Disk::with(&[(MARKER, OWN.as_bytes()), (FIRST_SEGMENT, SOMETHING), ("data/member/snap/db", b"x")]);
    let predecessor = File::open(disk.0.path()).unwrap();
    predecessor.lock().unwrap();
    let database = File::open(disk.0.path().join("data/member/snap/db")).unwrap();
    database.lock().unwrap();
    for start in [Start::Create, Start::Resume] {
        assert_eq!(disk.admit(start), Err(Reason::VolumeInUse), "it runs");
    }
    drop(database);
    assert_eq!(disk.admit(Start::Create), Err(Reason::VolumeInUse), "it has not ended");
    disk.admit(Start::Resume).unwrap();
    drop(predecessor);
    let database = File::open(disk.0.path().join("data/member/snap/db")).unwrap();
    database.lock().unwrap();
    for start in [Start::Create, Start::Resume] {
        assert_eq!(disk.admit(start), Err(Reason::VolumeInUse), "it runs, without the volume's lock");
    }
}

#[test]
fn a_symbolic_link_is_never_followed_to_delete() {
    let elsewhere = Disk::with(&[("member/snap/db", b"x")]);
    let disk = Disk::with(&[(MARKER, OWN.as_bytes())]);
    std::os::unix::fs::symlink(elsewhere.0.path(), disk.0.path().join(DATA_FOLDER)).unwrap();
    assert_eq!(disk.admit(Start::Create), Err(Reason::VolumeUnreadable));
    assert_eq!(elsewhere.files().len(), 3);
}
