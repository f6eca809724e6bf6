//! Reads what was recorded as somebody else would who has docs/backup-format.md: with JSON, zstd, BLAKE3, age and the tables
//! there, and nothing of the format as this crate has it. What comes out is held against etcd's own watch.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use etcd_client::proto::PbKeyValue;
use etcd_client::{Client, EventType, WatchOptions};
use jiff::Timestamp;
use prost::Message;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::archive_real::{Archive, recorded, write};
use crate::database::events_after;
use crate::pair::Pair;
use crate::real::{Binaries, Etcd, each_version};
use crate::recorded::{FIRST, Recorded, files};

const BOTH: [&str; 3] = ["header", "data", "lastEvents"];
const HEADER: [&str; 5] = ["format", "lineage", "cluster", "generation", "writer"];
const FULL: [&str; 6] = ["etcdVersion", "revision", "compactRevision", "authRevision", "taken", "databaseBytes"];
const DELTA: [&str; 6] = ["from", "to", "previous", "events", "leases", "samples"];
const DATA: [&str; 4] = ["name", "blake3", "plainBytes", "frames"];
/// What a frame holds when decompressed, unless it is the last.
const FRAME: usize = 4_194_304;
/// What etcd sends behind a database: its SHA-256.
const HASH: usize = 32;
const CONTEXT: &str = "quorate.dev 2026 lastEvents of encrypted backups";
/// How long a watch may take to show what happened long ago.
const PATIENCE: Duration = Duration::from_secs(30);

/// A record: its revision, its number in that, whether it is a deletion, and its value.
type Event = (u64, u64, bool, Vec<u8>);

/// The only generation of a store.
struct Generation<'a> {
    folder: PathBuf,
    /// Lineage, cluster and generation, as the folders are called.
    names: Vec<String>,
    /// By which it is encrypted, if it is.
    pair: Option<&'a Pair>,
    /// The files that were read.
    read: BTreeSet<PathBuf>,
}

/// All that is in it.
struct Content {
    full: Value,
    database: Vec<u8>,
    events: Vec<Event>,
    /// Leases with their TTLs.
    leases: BTreeMap<i64, i64>,
}

fn number(json: &Value, name: &str) -> u64 {
    json[name].as_u64().unwrap_or_else(|| panic!("{name} of {json}"))
}

fn text<'a>(json: &'a Value, name: &str) -> &'a str {
    json[name].as_str().unwrap_or_else(|| panic!("{name} of {json}"))
}

fn moment(json: &Value, name: &str) -> Timestamp {
    assert!(text(json, name).ends_with('Z'), "{json}");
    text(json, name).parse().unwrap()
}

/// It has these fields and no others.
fn has_fields(json: &Value, wanted: &[&str]) {
    let found: BTreeSet<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let wanted: BTreeSet<_> = wanted.iter().copied().collect();
    assert_eq!(found, wanted, "{json}");
}

fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Records one after the other, each with the bytes that it takes.
fn records(mut bytes: &[u8]) -> Vec<(Event, &[u8])> {
    let mut found = Vec::new();
    while let Some(length) = bytes.first() {
        let value = 1 + usize::from(*length) + 4;
        let size = u32::from_le_bytes(bytes[value - 4..value].try_into().unwrap());
        let (record, after) = bytes.split_at(value + usize::try_from(size).unwrap());
        let key = &record[1..value - 4];
        let is_deletion = match key.len() {
            17 => false,
            18 => key[17] == b't',
            other => panic!("a key of {other} bytes"),
        };
        assert!(key[8] == b'_' && is_deletion == (key.len() == 18), "{key:?}");
        let number = |from: usize| u64::from_be_bytes(key[from..from + 8].try_into().unwrap());
        found.push(((number(0), number(9), is_deletion, record[value..].to_vec()), record));
        bytes = after;
    }
    found
}

/// The same the other way round.
fn written((revision, sub, is_deletion, value): &Event) -> Vec<u8> {
    let mark: &[u8] = if *is_deletion { b"t" } else { b"" };
    let key = [&revision.to_be_bytes()[..], b"_", &sub.to_be_bytes(), mark].concat();
    let sizes = (u8::try_from(key.len()).unwrap(), u32::try_from(value.len()).unwrap());
    [&[sizes.0][..], &key[..], &sizes.1.to_le_bytes(), &value[..]].concat()
}

impl<'a> Generation<'a> {
    fn of(store: &Path, pair: Option<&'a Pair>) -> Self {
        let format = store.join("quorate-backups.json");
        let said: Value = serde_json::from_slice(&fs::read(&format).unwrap()).unwrap();
        assert_eq!(said, json!({"format": "quorate-backups", "version": 1}));
        let (mut folder, mut names) = (store.to_owned(), Vec::new());
        for _ in 0..3 {
            let inside = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            let found: Vec<_> = inside.filter(|path| path.is_dir()).collect();
            let [inner] = &found[..] else { panic!("{found:?}") };
            names.push(inner.file_name().unwrap().to_str().unwrap().to_owned());
            folder.clone_from(inner);
        }
        assert!(is_hexadecimal(&names[1], 16), "{names:?}");
        let (begun, random) = names[2].split_once('-').unwrap();
        assert!(jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", begun).is_ok() && is_hexadecimal(random, 16));
        Self { folder, names, pair, read: [format].into() }
    }

    fn file(&mut self, name: &str) -> Option<Vec<u8>> {
        let path = self.folder.join(name);
        let bytes = fs::read(&path).ok()?;
        self.read.insert(path);
        Some(bytes)
    }

    /// A manifest and the hash by which the next one knows it, if it is there.
    fn manifest(&mut self, name: &str, own: &[&str]) -> Option<(Value, String)> {
        let bytes = self.file(name)?;
        let json: Value = serde_json::from_slice(&bytes).unwrap();
        has_fields(&json, &[&BOTH[..], own].concat());
        let header = &json["header"];
        has_fields(header, &HEADER);
        assert_eq!(number(header, "format"), if self.pair.is_some() { 2 } else { 1 });
        let place = ["lineage", "cluster", "generation"].map(|name| text(header, name));
        assert!(place[..] == self.names[..] && is_hexadecimal(text(header, "writer"), 32), "{header}");
        Some((json, blake3::hash(&bytes).to_hex().to_string()))
    }

    /// The data that a manifest refers to, decrypted and decompressed.
    fn data(&mut self, manifest: &Value) -> Vec<u8> {
        let data = &manifest["data"];
        let name = text(data, "name");
        assert!(is_hexadecimal(name, 32), "{data}");
        let object = self.file(&format!("d/{name}")).unwrap();
        assert_eq!(blake3::hash(&object).to_hex().as_str(), text(data, "blake3"));
        let stream = match self.pair {
            None => {
                has_fields(data, &DATA);
                object
            }
            Some(pair) => {
                has_fields(data, &[&DATA[..], &["age"]].concat());
                let fingerprint = blake3::hash(recipient(pair).as_bytes()).to_hex()[..16].to_owned();
                assert_eq!(data["age"], json!({"recipients": [fingerprint], "bytes": object.len()}));
                pair.decrypt(&object)
            }
        };
        let plain = frames(&stream, &data["frames"]);
        assert_eq!(plain.len() as u64, number(data, "plainBytes"));
        assert!(zstd::decode_all(&stream[..]).unwrap() == plain, "it is no plain stream");
        plain
    }

    /// As `lastEvents` has it.
    fn hash(&self, records: &[u8]) -> String {
        let hash = match self.pair {
            None => blake3::hash(records),
            Some(pair) => blake3::keyed_hash(&blake3::derive_key(CONTEXT, recipient(pair).as_bytes()), records),
        };
        hash.to_hex().to_string()
    }

    /// Reads all of it, from one manifest to the next, and proves what each says.
    fn read(mut self, store: &Path) -> Content {
        let (full, mut previous) = self.manifest("full", &FULL).unwrap();
        let sent = self.data(&full);
        let database = self.proved_full(&full, &sent);
        let (mut head, mut at) = (number(&full, "revision"), moment(&full, "taken"));
        let (mut events, mut leases) = (Vec::new(), BTreeMap::new());
        while let Some((delta, hash)) = self.manifest(&format!("m/{:020}", head + 1), &DELTA) {
            assert_eq!((number(&delta, "from"), text(&delta, "previous")), (head + 1, previous.as_str()));
            let bytes = self.data(&delta);
            let records = records(&bytes);
            assert_eq!(records.len() as u64, number(&delta, "events"));
            let to = number(&delta, "to");
            let last: Vec<_> = records.iter().filter(|(event, _)| event.0 == to).map(|(_, record)| *record).collect();
            assert_eq!(self.hash(&last.concat()), text(&delta, "lastEvents"));
            let revisions: BTreeSet<_> = records.iter().map(|(event, _)| event.0).collect();
            assert!(revisions.into_iter().eq(head + 1..=to), "there are gaps before {to}");
            for sample in delta["samples"].as_array().unwrap() {
                has_fields(sample, &["at", "revision"]);
                assert!(at <= moment(sample, "at") && number(sample, "revision") <= to, "{sample}");
                at = moment(sample, "at");
            }
            for lease in delta["leases"].as_array().unwrap() {
                has_fields(lease, &["id", "ttl"]);
                leases.insert(lease["id"].as_i64().unwrap(), lease["ttl"].as_i64().unwrap());
            }
            events.extend(records.into_iter().map(|(event, _)| event));
            (head, previous) = (to, hash);
        }
        assert!(events.is_sorted_by_key(|(revision, sub, ..)| (*revision, *sub)));
        assert_eq!(files(store), self.read.into_iter().collect::<Vec<_>>(), "there is something else");
        Content { full, database, events, leases }
    }

    /// The database of the full snapshot without what etcd sends behind it.
    fn proved_full(&self, full: &Value, sent: &[u8]) -> Vec<u8> {
        let (database, hash) = sent.split_at(sent.len() - HASH);
        assert!(digest(&SHA256, database).as_ref() == hash, "it is not what etcd has sent");
        assert_eq!(database.len() as u64, number(full, "databaseBytes"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        fs::write(&path, database).unwrap();
        let mut last = events_after(&path, number(full, "revision") - 1);
        last.retain(|(_, value)| !value.is_empty());
        let last = last.into_iter().map(|(key, value)| written(&(key.main, key.sub, key.tombstone, value)));
        assert_eq!(self.hash(&last.collect::<Vec<_>>().concat()), text(full, "lastEvents"));
        database.to_vec()
    }
}

/// A public key as text, without the line's end.
fn recipient(pair: &Pair) -> String {
    fs::read_to_string(pair.recipients()).unwrap().trim_end().to_owned()
}

/// Decompresses each frame by itself.
fn frames(stream: &[u8], sizes: &Value) -> Vec<u8> {
    let (mut rest, mut plain) = (stream, Vec::new());
    let sizes = sizes.as_array().unwrap();
    for (index, size) in sizes.iter().enumerate() {
        let (frame, after) = rest.split_at(usize::try_from(size.as_u64().unwrap()).unwrap());
        // RFC 8878, 3.1.1.1.1: whether there is a checksum, and the content's size.
        assert!(frame[4] & 0b100 != 0 && frame[4] & 0b1110_0000 != 0, "{:#b}", frame[4]);
        let content = zstd::bulk::decompress(frame, FRAME).unwrap();
        assert!(content.len() == FRAME || index + 1 == sizes.len(), "frame {index} has {} bytes", content.len());
        plain.extend(content);
        rest = after;
    }
    assert_eq!(rest.len(), 0, "there is more than frames");
    plain
}

/// What etcd itself shows of its history, as a record would have it.
async fn watched(client: &Client, from: i64, to: i64) -> Vec<(i64, bool, PbKeyValue)> {
    let all = WatchOptions::new().with_all_keys().with_start_revision(from);
    // One event is larger than an answer may be otherwise.
    let mut client = client.watch_client().max_decoding_message_size(usize::MAX);
    let mut watch = Box::pin(client.watch("", Some(all))).await.unwrap();
    let mut events: Vec<(i64, bool, PbKeyValue)> = Vec::new();
    while events.last().is_none_or(|(revision, ..)| *revision < to) {
        let told = timeout(PATIENCE, watch.message()).await.expect("a watch is told nothing").unwrap().unwrap();
        for event in told.events() {
            let mut kv = event.kv().unwrap().0.clone();
            let (revision, is_deletion) = (kv.mod_revision, event.event_type() == EventType::Delete);
            if is_deletion {
                // Of one etcd keeps nothing but the key.
                kv.mod_revision = 0;
            }
            events.push((revision, is_deletion, kv));
        }
    }
    events
}

async fn is_read(binaries: &Binaries) {
    let store = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    let archive = Archive::start(&etcd, store.path());
    recorded(store.path(), 1, 1).await;
    let mut rng = fastrand::Rng::with_seed(17);
    for round in 1..4 {
        let moment = write(&mut client, round, &mut rng).await;
        recorded(store.path(), 1, moment.revision).await;
    }
    // More than goes into one frame, and smaller in none.
    let mut large = vec![0; FRAME + 5];
    rng.fill(&mut large);
    let last = client.put("large", large, None).await.unwrap();
    let header = last.header().unwrap();
    recorded(store.path(), 1, header.revision()).await;
    archive.stop();

    let generation = Generation::of(store.path(), None);
    assert_eq!(generation.names[..2], ["blue".to_owned(), format!("{:016x}", header.cluster_id())]);
    let Content { full, database, events, leases } = generation.read(store.path());
    assert!(binaries.run("etcd", &["--version"]).contains(text(&full, "etcdVersion")), "{full}");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("db"), database).unwrap();
    // It was taken when nothing was written yet: there is no event of its revision, and etcdutl knows no other.
    let status = binaries.status(&folder.path().join("db"));
    assert_eq!((&status["revision"], &full["revision"]), (&json!(0), &json!(1)), "{status}");
    let begin = full["revision"].as_i64().unwrap() + 1;
    let found = events.into_iter().map(|(revision, _, is_deletion, value)| {
        (revision.cast_signed(), is_deletion, PbKeyValue::decode(&value[..]).unwrap())
    });
    let (found, wanted) = (found.collect::<Vec<_>>(), watched(&client, begin, header.revision()).await);
    assert!(found.len() > 100 && found == wanted, "{} events instead of {}", found.len(), wanted.len());
    // Those that are there at the end were there long enough to be learned of.
    for lease in client.leases().await.unwrap().leases() {
        assert_eq!(leases.get(&lease.id()), Some(&5000));
    }
}

#[test]
fn somebody_else_reads_what_was_recorded_by_the_document_alone() {
    each_version(is_read);
}

#[tokio::test]
async fn somebody_else_reads_what_is_encrypted_by_the_document_and_the_keys() {
    let recorded = Recorded::encrypted(&[10, 40]).await;
    let store = recorded.folder.path();
    let Content { events, .. } = Generation::of(store, recorded.pair.as_ref()).read(store);
    let wanted = recorded.entries.iter().filter(|(key, _)| key.main > FIRST);
    let wanted: Vec<_> = wanted.map(|(key, value)| (key.main, key.sub, key.tombstone, value.clone())).collect();
    assert!(!wanted.is_empty() && events == wanted, "{} events instead of {}", events.len(), wanted.len());
}
