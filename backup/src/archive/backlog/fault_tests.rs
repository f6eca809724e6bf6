//! Faults of the file of what waits: what was harmed there is never handed on as if it were sound.

use std::os::fd::AsRawFd as _;

use etcd_client::proto::PbKeyValue;
use rustix::io::Errno;

use super::*;

/// A put that is all of its revision.
fn put(revision: i64, bytes: usize) -> News {
    let kv =
        PbKeyValue { key: b"key".to_vec(), mod_revision: revision, value: vec![7; bytes], ..PbKeyValue::default() };
    News::Events(vec![PbEvent { r#type: 0, kv: Some(kv), prev_kv: None }])
}

/// Small ones of both kinds. In the file a moment has microseconds.
fn some() -> Vec<Heard> {
    let at = |number: i64| Timestamp::from_microsecond(1_800_000_000_000_000 + number).unwrap();
    let news = [put(5, 20), News::Progress(5), put(6, 20)];
    (0..).zip(news).map(|(number, news)| Heard { at: at(number), news }).collect()
}

/// A file with these.
fn spill(all: &[Heard]) -> Spill {
    let (file, room) = (tempfile::tempfile().unwrap(), Room::new(1 << 20));
    let mut spill = Spill { file, room, written: 0, read: 0, given_back: 0 };
    for heard in all {
        spill.push(heard.clone()).unwrap();
    }
    spill
}

/// What comes before the error is what was put there.
fn is_noticed(spill: &mut Spill, all: &[Heard], harm: &str) {
    for heard in all {
        match spill.pop() {
            Ok(found) => assert_eq!(found.as_ref(), Some(heard), "{harm}"),
            Err(_) => return,
        }
    }
    panic!("{harm}: nobody noticed");
}

#[test]
fn a_bit_that_flips_in_the_file_is_noticed_wherever_it_is() {
    let all = some();
    let bytes = spill(&all).written;
    // What is before the news comes last: a wrong length may harm more than what is read.
    for at in (BEFORE..bytes).chain(0..BEFORE) {
        for bit in 0..8 {
            let mut spill = spill(&all);
            let mut byte = [0];
            spill.file.read_exact_at(&mut byte, at).unwrap();
            spill.file.write_all_at(&[byte[0] ^ (1 << bit)], at).unwrap();
            is_noticed(&mut spill, &all, &format!("bit {bit} of byte {at} of {bytes}"));
        }
    }
}

#[test]
fn a_file_that_has_lost_its_end_is_noticed_wherever_it_ends() {
    let all = some();
    let bytes = spill(&all).written;
    for end in 0..bytes {
        let mut spill = spill(&all);
        spill.file.set_len(end).unwrap();
        is_noticed(&mut spill, &all, &format!("{end} of {bytes} bytes"));
    }
}

/// The system fills with zeros what lies between the end of a file and what is written behind it.
#[test]
fn a_file_that_has_lost_its_end_is_noticed_also_when_it_has_got_longer_since() {
    let all = some();
    let bytes = spill(&all).written;
    for end in 0..bytes {
        let mut spill = spill(&all);
        spill.file.set_len(end).unwrap();
        spill.push(all[0].clone()).unwrap();
        is_noticed(&mut spill, &all, &format!("{end} of {bytes} bytes"));
    }
}

#[tokio::test]
async fn when_the_file_can_not_be_written_what_was_held_still_comes_and_then_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let backlog = Backlog::new(folder.path(), Room::new(1 << 30)).unwrap();
    // The first fills the memory, and the second is in the file.
    let held = [put(5, MEMORY), put(6, 20)];
    for news in &held {
        assert!(backlog.push(news.clone()));
    }
    {
        let spill = &mut backlog.lock().spill;
        assert!(!spill.is_empty(), "nothing is in the file");
        spill.file = File::open(format!("/proc/self/fd/{}", spill.file.as_raw_fd())).unwrap();
    }
    assert!(!backlog.push(put(7, 20)), "it was written");
    for news in held {
        assert!(backlog.next().await.unwrap().news == news);
    }
    let error = backlog.next().await.unwrap_err();
    let FeedError::Overflow(reason) = &error else { panic!("{error}") };
    assert_eq!(reason.raw_os_error(), Some(Errno::BADF.raw_os_error()), "{error}");
}
