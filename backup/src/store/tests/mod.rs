//! The store over memory, over a folder, and over servers that fail.

pub mod faulty;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use faulty::{Fault, Faulty, sound};
use futures::TryStreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::upload::PART;
use super::*;

fn settings(address: &str) -> Settings {
    Settings {
        address: address.parse().unwrap(),
        options: BTreeMap::new(),
        credentials: None,
        ca: None,
        keys: KeyFiles::default(),
    }
}

#[tokio::test]
async fn a_folder_keeps_what_it_is_given_and_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&settings(&format!("file://{}", folder.path().display()))).unwrap();
    assert!(matches!(store.check().await, Err(StoreError::OtherFormat { .. })));
    store.prepare().await.unwrap();
    store.prepare().await.unwrap();
    store.check().await.unwrap();

    let key = Key::new("a/b").join("c");
    assert_eq!(store.create(&key, Bytes::from_static(b"one")).await.unwrap(), Creation::Created);
    assert_eq!(store.create(&key, Bytes::from_static(b"two")).await.unwrap(), Creation::Exists);
    assert_eq!(store.read(&key, 3).await.unwrap().unwrap(), "one");
    assert!(matches!(store.read(&key, 2).await, Err(StoreError::TooLarge { bytes: 3, .. })));
    assert_eq!(store.read(&Key::new("a/x"), 3).await.unwrap(), None);
    assert_eq!(store.read_range(&key, 1..3).await.unwrap(), "ne");
    assert!(store.read_range(&key, 1..4).await.is_err());
    assert_eq!(store.folders(None).await.unwrap(), ["a"]);
    let listed: Vec<_> = store.list(Some(&Key::new("a"))).try_collect().await.unwrap();
    assert_eq!(listed.iter().map(|listed| (listed.key.as_str(), listed.bytes)).collect::<Vec<_>>(), [("a/b/c", 3)]);
    store.delete(&key).await.unwrap();
    store.delete(&key).await.unwrap();
    assert_eq!(store.size(&key).await.unwrap(), None);
}

#[tokio::test]
async fn what_was_given_up_leaves_no_folder_to_be_seen() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&settings(&format!("file://{}", folder.path().display()))).unwrap();
    let mut upload = store.upload(&Key::new("a/b/c"));
    upload.write(Bytes::from(vec![7; 2 * PART])).await.unwrap();
    upload.abort().await;
    assert!(folder.path().join("a/b").is_dir(), "nothing was begun");
    assert_eq!(store.folders(None).await.unwrap(), [""; 0]);
    assert_eq!(store.folders(Some(&Key::new("a"))).await.unwrap(), [""; 0]);
    assert_eq!(store.create(&Key::new("a/d/e"), Bytes::new()).await.unwrap(), Creation::Created);
    assert_eq!(store.folders(None).await.unwrap(), ["a"]);
    assert_eq!(store.folders(Some(&Key::new("a"))).await.unwrap(), ["d"]);
}

#[tokio::test]
async fn a_volume_that_is_not_mounted_is_no_empty_store() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("file://{}/nothing", folder.path().display());
    assert!(matches!(Store::open(&settings(&address)), Err(StoreError::Open { .. })));
}

#[tokio::test]
async fn a_store_that_overwrites_is_refused_at_first_use() {
    let error = Faulty::puts(&[Fault::None, Fault::Overwrites]).store().prepare().await.unwrap_err();
    assert!(matches!(error, StoreError::Overwrites { .. }), "{error}");
    assert!(error.to_string().contains("create-only"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_first_put_that_is_refused_where_nothing_is_is_tried_again() {
    Faulty::puts(&[Fault::FalseConflict; 2]).store().prepare().await.unwrap();
    let error =
        Faulty::puts(&[Fault::FalseConflict, Fault::None, Fault::Overwrites]).store().prepare().await.unwrap_err();
    assert!(matches!(error, StoreError::Overwrites { .. }), "{error}");
    let error = Faulty::puts(&[Fault::FalseConflict; 9]).store().prepare().await.unwrap_err();
    assert!(error.to_string().contains("the store says that it exists, and does not show it"), "{error}");
}

#[tokio::test]
async fn a_prefix_with_something_else_in_it_is_refused() {
    let store = sound();
    store.create(&Key::new(FORMAT_KEY), Bytes::from_static(b"{\"version\":2}")).await.unwrap();
    let error = store.prepare().await.unwrap_err().to_string();
    assert!(error.contains("\"version\\\":2") || error.contains("\"version\":2"), "{error}");
}

#[tokio::test]
async fn an_upload_comes_back_whole_whatever_its_pieces() {
    for sizes in [vec![], vec![PART], vec![PART + 1], vec![3; 40], vec![PART - 1, 2, PART]] {
        let store = sound();
        let key = Key::new("x");
        let mut upload = store.upload(&key);
        let mut wanted = Vec::new();
        for (number, size) in sizes.iter().enumerate() {
            let piece = vec![u8::try_from(number).unwrap(); *size];
            wanted.extend_from_slice(&piece);
            upload.write(piece.into()).await.unwrap();
        }
        assert_eq!(upload.written(), wanted.len() as u64);
        upload.finish().await.unwrap();
        assert_eq!(store.read(&key, u64::MAX).await.unwrap().unwrap(), wanted);
    }
}

#[tokio::test]
async fn a_part_that_fails_fails_the_upload_and_nothing_appears() {
    for part in 0..3 {
        let objects = Faulty::failing_part(part);
        let aborted = Arc::clone(&objects.aborted);
        let store = objects.store();
        let mut upload = store.upload(&Key::new("x"));
        let mut result = Ok(());
        for _ in 0..3 {
            result = upload.write(vec![7; PART].into()).await;
            if result.is_err() {
                break;
            }
        }
        let error = match result {
            Err(error) => error,
            Ok(()) => upload.finish().await.unwrap_err(),
        };
        assert!(error.to_string().contains("connection reset"), "{error}");
        assert_eq!(aborted.load(Ordering::SeqCst), 1, "part {part}");
        assert_eq!(store.size(&Key::new("x")).await.unwrap(), None);
    }
}

#[tokio::test]
async fn an_upload_that_is_dropped_or_given_up_is_taken_back() {
    for end in ["dropped", "given up", "dropped while it is given up"] {
        let objects = Faulty::failing_part(None);
        let aborted = Arc::clone(&objects.aborted);
        let store = objects.store();
        let mut upload = store.upload(&Key::new("x"));
        upload.write(vec![7; PART + 1].into()).await.unwrap();
        match end {
            "dropped" => drop(upload),
            "given up" => upload.abort().await,
            _ => drop(tokio::time::timeout(Duration::ZERO, upload.abort()).await),
        }
        taken_back(Duration::from_secs(10)).await;
        assert_eq!(aborted.load(Ordering::SeqCst), 1, "{end}");
        assert_eq!(store.size(&Key::new("x")).await.unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn an_upload_is_given_up_only_when_no_part_is_on_its_way() {
    // A part that takes too long is cut off, so that nobody waits for a store that is away.
    for (seconds, arrive) in [(1, 2), (1000, 0)] {
        let objects = Faulty::slow_parts(Duration::from_secs(seconds));
        let (aborted, arrived) = (Arc::clone(&objects.aborted), Arc::clone(&objects.arrived));
        let mut upload = objects.store().upload(&Key::new("x"));
        upload.write(vec![7; 2 * PART + 1].into()).await.unwrap();
        let begun = Instant::now();
        upload.abort().await;
        assert_eq!((arrived.load(Ordering::SeqCst), aborted.load(Ordering::SeqCst)), (arrive, 1));
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn errors_say_what_to_do() {
    let address = "s3://bucket/p".parse().unwrap();
    let of = |source: object_store::Error| StoreError::of(&address, Act::Write, &Key::new("k"), &source);
    let not_found = |text: &str| object_store::Error::NotFound { path: "k".into(), source: text.into() };
    assert!(matches!(of(not_found("404: <Code>NoSuchBucket</Code>")), StoreError::NoBucket(_)));
    assert!(matches!(of(not_found("404: <Code>InvalidAccessKeyId</Code>")), StoreError::Refused { .. }));
    assert!(matches!(of(not_found("status code: 404: <Code>NoSuchKey</Code>")), StoreError::Missing(_)));
    assert!(matches!(of(not_found("no such file or directory")), StoreError::Missing(_)));
    let denied = object_store::Error::PermissionDenied { path: "k".into(), source: "403".into() };
    assert!(matches!(of(denied), StoreError::Refused { .. }));
    let long = "403: <Error><Code>SignatureDoesNotMatch</Code><Message>Check your key.</Message><CanonicalRequest>GET";
    let denied = object_store::Error::PermissionDenied { path: "k".into(), source: long.into() };
    let text = of(denied).to_string();
    assert!(text.ends_with("403: SignatureDoesNotMatch: Check your key.") && !text.contains("GET"), "{text}");
    let generic = object_store::Error::Generic { store: "S3", source: "503 Slow Down".into() };
    assert!(of(generic).to_string().contains("503 Slow Down"));
    let source = "client error (Connect): invalid peer certificate: UnknownIssuer".into();
    let text = of(object_store::Error::Generic { store: "S3", source }).to_string();
    assert!(text.contains("ca.crt") && text.contains("--store-ca") && text.contains("UnknownIssuer"), "{text}");
}

#[test]
fn another_region_is_told_from_a_wrong_key() {
    let s3 = "s3://bucket/p".parse().unwrap();
    let of = |address: &Address, source: &str| {
        let source = object_store::Error::Generic { store: "S3", source: source.into() };
        StoreError::of(address, Act::Read, &Key::new("k"), &source)
    };
    let malformed = |words: &str| {
        format!(
            "400: <Error><Code>AuthorizationHeaderMalformed</Code><Message>The header is malformed; {words}</Message></Error>"
        )
    };
    let redirected = "Received redirect without LOCATION, this normally indicates an incorrectly configured region";
    for source in [&malformed("the region &#34;a&#34; is wrong; expecting &#34;b&#34;"), redirected] {
        let error = of(&s3, source);
        assert!(matches!(error, StoreError::OtherRegion { .. }), "{error}");
        assert!(error.to_string().contains("set the option region to the bucket's"), "{error}");
    }
    let text = of(&s3, &malformed("the region &#34;a&#34; is wrong; expecting &#34;b&#34;")).to_string();
    assert!(text.ends_with("the region \"a\" is wrong; expecting \"b\""), "{text}");
    for words in ["a non-empty Access Key (AKID) must be provided in the credential.", "the Credential is mal-formed"] {
        let error = of(&s3, &malformed(words));
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    }
    // No bucket of S3's is asked for.
    let azure = "azure://account/container".parse().unwrap();
    let exchange = format!("failed to exchange the token in x for keys of the role y: {redirected}");
    for error in [of(&azure, redirected), of(&s3, &exchange)] {
        assert!(matches!(error, StoreError::Failed { .. }), "{error}");
    }
}

#[test]
fn what_is_locked_is_told_from_what_the_credentials_may_not_do() {
    use object_store::Error;
    let address = "s3://bucket/p".parse().unwrap();
    let of = |source: &Error| StoreError::of(&address, Act::Delete, &Key::new("k"), source);
    // As the library passes on the answers to many deletions at once, and to other requests.
    let many = |words: &str| Error::Generic { store: "store", source: format!("failed for key k: {words}").into() };
    let denied = |words: &str| Error::PermissionDenied { path: "k".into(), source: format!("403: {words}").into() };
    let conflict = |words: &str| Error::AlreadyExists { path: "k".into(), source: format!("409: {words}").into() };
    for source in [
        many("Access Denied because object protected by object lock. (code: AccessDenied)"),
        denied("<Code>AccessDenied</Code><Message>Access Denied because object protected by object lock.</Message>"),
        many("forbidden by object lock (code: AccessDenied)"),
        many("Object is WORM protected and cannot be overwritten (code: InvalidRequest)"),
        denied("<Code>RetentionPolicyNotMet</Code><Message>Not allowed due to retention policy.</Message>"),
        denied("<Code>ObjectUnderActiveHold</Code><Message>Not allowed due to active hold.</Message>"),
        many("This operation is not permitted as the blob is immutable due to a policy. (code: 409)"),
        conflict("<Code>BlobImmutableDueToLegalHold</Code>"),
    ] {
        let (error, words) = (of(&source), "\"k\" in s3://bucket/p: the object is locked until its retention ends");
        assert!(matches!(error, StoreError::Locked { .. }) && error.to_string().contains(words), "{error}");
        assert!(!error.to_string().contains("credentials"), "{error}");
    }
    let error = of(&many("Access Denied. (code: AccessDenied)"));
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
}

#[tokio::test]
async fn what_is_locked_is_there_for_who_would_only_create_it() {
    let store = Faulty::puts(&[Fault::Locked]).store();
    assert_eq!(store.create(&Key::new("x"), Bytes::from_static(b"x")).await.unwrap(), Creation::Exists);
    // As in a bucket that locks whatever is put there.
    let store = Faulty::puts(&[Fault::None, Fault::Locked, Fault::Locked]).store();
    for _ in 0..2 {
        store.prepare().await.unwrap();
    }
}

/// A server that answers this to every request.
async fn answering(answer: &'static str) -> Store {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // None has a body, so what comes first is all.
            let read = stream.read(&mut [0; 8192]).await.unwrap();
            assert!(read > 0);
            let length = answer.len();
            let text =
                format!("HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{answer}");
            stream.write_all(text.as_bytes()).await.unwrap();
        }
    });
    let credentials = tempfile::tempdir().unwrap();
    std::fs::write(credentials.path().join("account-key"), "c2VjcmV0").unwrap();
    let options = BTreeMap::from([("endpoint".to_owned(), endpoint)]);
    let credentials = Some(CredentialsFolder(credentials.path().to_owned()));
    Store::open(&Settings { options, credentials, ..settings("azure://account/container/prefix") }).unwrap()
}

#[tokio::test]
async fn an_endpoint_that_is_no_store_is_not_taken_for_an_empty_one() {
    let key = Key::new("x");
    let page = "<html><body>\n<h1>not found</h1>\n</body></html>";
    let store = answering(page).await;
    for error in [
        store.read(&key, 1).await.unwrap_err(),
        store.size(&key).await.unwrap_err(),
        store.check().await.unwrap_err(),
        store.list(None).try_collect::<Vec<_>>().await.unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Failed { .. }), "{error}");
        assert!(error.to_string().contains("404 Not Found") && !error.to_string().contains('\n'), "{error}");
    }
    let store = answering("<Error><Code>BlobNotFound</Code></Error>").await;
    assert_eq!((store.read(&key, 1).await.unwrap(), store.size(&key).await.unwrap()), (None, None));
}

#[test]
fn what_a_store_says_at_length_is_cut() {
    let address = "s3://bucket/p".parse().unwrap();
    let source = format!("502 Bad Gateway: <html>{}", "ä \n".repeat(10_000)).into();
    let generic = object_store::Error::Generic { store: "S3", source };
    let text = StoreError::of(&address, Act::List, &Key::new("k"), &generic).to_string();
    assert!(text.chars().count() < 500 && text.ends_with("...") && text.contains("502 Bad Gateway"), "{text}");
}

#[test]
fn a_volume_that_takes_no_more_is_told_from_other_faults_with_what_helps() {
    // The words come last, behind a path of any length.
    let words = |number: i32| {
        let fault = std::io::Error::from_raw_os_error(number);
        format!("Unable to copy data to file /{}: {fault}", "x".repeat(1000))
    };
    let of = |address: &str, act: Act, words: String| {
        let source = object_store::Error::Generic { store: "LocalFileSystem", source: words.into() };
        StoreError::of(&address.parse().unwrap(), act, &Key::new("k"), &source)
    };
    let (no_space, file_too_large, quota) = (28, 27, 122);
    for (number, remedy) in [
        (no_space, "larger, or remove old backups"),
        (quota, "larger, or remove old backups"),
        (file_too_large, "raise the limit"),
    ] {
        let error = of("file:///backups", Act::Write, words(number));
        assert!(matches!(error, StoreError::Full { .. }) && error.to_string().contains(remedy), "{error}");
    }
    // A file gets its name by a hard link, which not every file system has.
    for number in [95, 1, 38] {
        let unlinked = words(number).replace("copy data to file", "rename file:");
        let error = of("file:///backups", Act::Write, unlinked);
        assert!(matches!(error, StoreError::Unlinked { .. }), "{error}");
        let error = of("file:///backups", Act::Write, words(number));
        assert!(matches!(error, StoreError::Failed { .. }), "{error}");
    }
    for error in [
        of("file:///backups", Act::Write, words(5)),
        of("file:///backups", Act::Read, words(no_space)),
        of("s3://bucket/p", Act::Write, words(no_space)),
        // It is the number that counts, all of it.
        of("file:///backups", Act::Write, "odd (os error 281)".into()),
    ] {
        assert!(matches!(error, StoreError::Failed { .. }), "{error}");
    }
}
