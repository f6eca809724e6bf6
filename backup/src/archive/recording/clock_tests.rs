//! What an archive says of its clock: that it is behind what was recorded, as whoever restores by a time finds out.

use std::io;
use std::sync::{Arc, Mutex};

use tracing::Level;

use super::*;
use crate::archive::feed::FeedError;
use crate::archive::retention::Retention;
use crate::archive::scene::{Scene, put};
use crate::format::tests::stored;
use crate::format::{Choice, ChoiceError, Target};

/// What is said of a clock that is behind.
const WARNING: &str = "this clock is";

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().map_err(|_| io::ErrorKind::Other)?.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A record whose last moment is so many seconds after now.
async fn ending_at(scene: &Scene, seconds: i64) -> Chain {
    let now = Timestamp::now().as_second();
    stored(&scene.door.store(), 100, &[(20, now + seconds)]).await
}

/// Stores one revision more, which comes now, and gives what it said meanwhile.
async fn stores_another(scene: &Scene, chain: Chain) -> (Chain, String) {
    let log = Log::default();
    let written = log.clone();
    let writes = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_ansi(false);
    let logging = tracing::subscriber::set_default(writes.with_writer(move || written.clone()).finish());
    let head = chain.head().to_etcd();
    let (start, news) = scene.start(chain).await;
    // The second closes the first.
    assert!(news.push(put(head + 1)) && news.push(put(head + 2)));
    news.end(FeedError::Canceled("the stream has ended".into()));
    let mut recording = Recording::new(scene.session(), start, Post::Committer);
    let (_lead, leads) = watch::channel(true);
    let (_tell, stop) = watch::channel(false);
    let mut course = Course::new(Retention::new(None));
    let ended = Box::pin(recording.run(&mut course, leads, stop)).await;
    assert!(matches!(ended, Err(ArchiveError::Feed(FeedError::Canceled(_)))), "{ended:?}");
    drop(logging);
    let chain = recording.into_chain().unwrap();
    assert_eq!(chain.head().to_etcd(), head + 1);
    let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(said.contains(&format!("recorded up to revision {}", head + 1)), "{said}");
    (chain, said)
}

#[tokio::test]
async fn one_whose_clock_is_behind_says_with_all_that_it_stores_what_can_not_be_restored_by_a_time() {
    const HOURS: i64 = 10;
    let scene = Scene::new();
    let mut chain = ending_at(&scene, HOURS * 3600).await;
    for _ in 0..3 {
        let (longer, said) = Box::pin(stores_another(&scene, chain)).await;
        chain = longer;
        let warning = said.lines().find(|line| line.contains(WARNING)).unwrap_or_else(|| panic!("{said}"));
        assert!(warning.contains(" WARN ") && warning.contains(&format!("{WARNING} {}h ", HOURS - 1)), "{warning}");
        assert!(warning.contains("by its revision, and not by a time"), "{warning}");
    }
    // It is true.
    let (now, last) = (Timestamp::now(), chain.head());
    let by_time = Choice::of(chain.clone(), Target::Time(now), None).unwrap_err();
    let ChoiceError::ClockAhead { wanted, at, last: told, .. } = &by_time else { panic!("{by_time}") };
    assert_eq!((*wanted, *at, *told), (now, chain.last_moment(), last));
    assert_eq!(Choice::of(chain, Target::Revision(last), None).unwrap().revision, last);
}

#[tokio::test]
async fn one_whose_clock_is_right_or_hardly_behind_says_nothing_of_it() {
    // The last moment of what was recorded is past, or comes sooner than anybody would be warned of.
    for seconds in [-10, CLOCK_BEHIND.as_secs() - 1] {
        let scene = Scene::new();
        let chain = ending_at(&scene, seconds).await;
        let (_, said) = Box::pin(stores_another(&scene, chain)).await;
        assert!(!said.contains(WARNING), "{seconds} s: {said}");
    }
}
