//! What is said when a store is reached in a wrong way: the same of every store, whichever of the many requests meets it, and
//! to programs in one word.

use bytes::Bytes;
use futures::TryStreamExt;
use quorate_backup::snapshot::Reason;
use quorate_backup::store::{Key, Store, StoreError, Upload};

use super::s3::{REGION, VersityGw};
use super::{Flaw, Server};
use crate::agent::{Ended, run};
use crate::fake::{Mood, Served};
use crate::recorded::{Recorded, address};
use crate::snapshot::large;

/// Enough for the reason, and little enough for the status of an object in Kubernetes.
const LONGEST: usize = 600;
const PREFIX: &str = "flaws";

/// What is asked of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    Check,
    Read,
    ReadRange,
    Size,
    List,
    Folders,
    Prepare,
    Create,
    Upload,
    LargeUpload,
    Delete,
}

const READS: [Request; 6] =
    [Request::Check, Request::Read, Request::ReadRange, Request::Size, Request::List, Request::Folders];
const WRITES: [Request; 5] =
    [Request::Prepare, Request::Create, Request::Upload, Request::LargeUpload, Request::Delete];

pub async fn all(server: &dyn Server) {
    let place = server.place(PREFIX);
    let store = place.open();
    store.prepare().await.unwrap();
    store.create(&Key::new("a/object"), Bytes::from_static(b"x")).await.unwrap();
    let member = Served::start(Mood::Sound, large(0));
    let mut faults = Vec::new();
    for flaw in [Flaw::WrongKey, Flaw::WrongAccount, Flaw::NoBucket, Flaw::ReadOnly] {
        let Some(place) = server.flawed(PREFIX, flaw) else { continue };
        let store = place.open();
        for request in READS.into_iter().chain(WRITES) {
            let answer = ask(&store, request).await;
            let allowed = flaw == Flaw::ReadOnly && READS.contains(&request);
            let fits = if allowed { answer.is_ok() } else { explains(&store, flaw, &answer) };
            if !fits {
                faults.push((flaw, request, answer.map_err(|error| (error.to_string(), error))));
            }
        }
        let failure = place.failure(&member);
        assert_eq!(failure.reason, reason(flaw), "{flaw:?}: {}", failure.message);
    }
    assert!(faults.is_empty(), "{faults:#?}");
    let left: Vec<_> = store.list(None).try_collect().await.unwrap();
    assert_eq!(left.len(), 2, "what was refused was done: {left:?}");
}

async fn ask(store: &Store, request: Request) -> Result<(), StoreError> {
    let (there, new) = (Key::new("a/object"), Key::new("a/new"));
    match request {
        Request::Check => store.check().await,
        Request::Read => store.read(&there, 1).await.map(drop),
        Request::ReadRange => store.read_range(&there, 0..1).await.map(drop),
        Request::Size => store.size(&there).await.map(drop),
        Request::List => store.list(None).try_collect::<Vec<_>>().await.map(drop),
        Request::Folders => store.folders(None).await.map(drop),
        Request::Prepare => store.prepare().await,
        Request::Create => store.create(&new, Bytes::from_static(b"x")).await.map(drop),
        Request::Upload => send(store.upload(&new), 1).await,
        Request::LargeUpload => send(store.upload(&new), 9 << 20).await,
        Request::Delete => store.delete(&there).await,
    }
}

async fn send(mut upload: Upload, bytes: usize) -> Result<(), StoreError> {
    upload.write(vec![7; bytes].into()).await?;
    upload.finish().await
}

/// What a snapshot reports of it.
fn reason(flaw: Flaw) -> Reason {
    match flaw {
        Flaw::WrongKey | Flaw::WrongAccount | Flaw::ReadOnly => Reason::StoreRefused,
        Flaw::NoBucket => Reason::BucketMissing,
    }
}

/// Whether an answer is an error that says what is wrong, where, and what to do, in one short line.
fn explains(store: &Store, flaw: Flaw, answer: &Result<(), StoreError>) -> bool {
    let Err(error) = answer else { return false };
    let text = error.to_string();
    let reason = match flaw {
        Flaw::WrongKey | Flaw::WrongAccount | Flaw::ReadOnly => {
            matches!(error, StoreError::Refused { .. }) && text.contains("the store refuses the credentials")
        }
        Flaw::NoBucket => {
            matches!(error, StoreError::NoBucket(_)) && text.contains("the bucket does not exist; create it")
        }
    };
    let place = text.starts_with("failed to ") && text.contains(&store.address().to_string());
    let short = text.len() < LONGEST && !text.contains(['\n', '<']);
    // What a signature and a token are called wherever they are shown.
    let secret = text.contains("sig=") || text.contains("Bearer") || text.contains("SharedKey");
    reason && place && short && !secret
}

/// Of the region: whichever command is asked for, at once, and with the right one.
pub fn of_the_region_are_told(server: &VersityGw) {
    let (place, member) = (server.elsewhere(PREFIX), Served::start(Mood::Sound, large(0)));
    let failure = place.failure(&member);
    assert_eq!(failure.reason, Reason::StoreInvalid, "{}", failure.message);
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join("left");
    let restored = place.run("restore", &["--lineage", "blue", "--database", left.to_str().unwrap()]);
    let listed = place.run("list", &[]);
    for text in [failure.message.as_str(), restored.error(), listed.error()] {
        for words in ["set the option region to the bucket's", &format!("expecting \"{REGION}\"")] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    assert!(!left.exists());
}

/// Of an option: whichever command is given it, and for whichever store, before that is asked anything.
pub async fn of_an_option_are_told_with_what_is_known() {
    let recorded = Recorded::full().await;
    let (folder, manifest) = (address(recorded.folder.path()), recorded.chain.key.full());
    let (hash, left) = (recorded.chain.full_hash.to_string(), recorded.folder.path().join("left"));
    let whose = ["--lineage", "blue"];
    let commands: [(&str, &[&str]); 9] = [
        ("snapshot", &whose),
        ("archive", &whose),
        ("restore", &["--lineage", "blue", "--database", left.to_str().unwrap()]),
        ("list", &whose),
        ("inspect", &whose),
        ("verify", &whose),
        ("copy", &["--lineage", "blue", "--target", &folder]),
        ("delete", &[manifest.as_str(), "--hash", &hash]),
        ("prune", &["--lineage", "blue", "--keep-last", "1d"]),
    ];
    let of_s3 = "endpoint, region, addressing, payload, kms-key";
    let stores = [
        ("s3://bucket/prefix", of_s3),
        ("gs://bucket/prefix", "endpoint"),
        ("azure://account/container/prefix", "endpoint"),
        (folder.as_str(), "none"),
    ];
    let told = |ended: &Ended, known: &str| {
        let words = format!("unknown option \"endpont\" of this store; known are: {known}");
        assert!(ended.error().lines().any(|line| line.ends_with(&words)), "{words}: {}", ended.stderr);
    };
    for (store, known) in stores {
        for (command, own) in commands {
            let arguments = [command, "--store", store, "--store-option", "endpont=http://127.0.0.1:1"];
            told(&run(&[&arguments[..], own].concat()), known);
        }
    }
    let target = ["--target", "s3://bucket/prefix", "--target-option", "endpont=http://127.0.0.1:1"];
    told(&recorded.run("copy", &target), of_s3);
    assert!(!left.exists());
}
