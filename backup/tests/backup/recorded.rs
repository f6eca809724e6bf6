//! A store on a volume with a backup that is known event by event, made without etcd: a full snapshot of a small database,
//! and deltas behind it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use prost::Message;
use quorate_backup::bolt::mvcc::{BucketKey, KeyValue};
use quorate_backup::format::{
    Chain, DataWriter, Delta, Full, GenerationKey, GenerationName, Header, LeaseGrant, Lineage, Nonce, Record,
    Revision, Sample, Seal, commit, generations, write_record,
};
use quorate_backup::keys::KeyFiles;
use quorate_backup::store::{Settings, Store};
use tempfile::TempDir;

use crate::agent::{Ended, run};
use crate::database::{events_after, small};
use crate::fake::{Mood, Served};
use crate::pair::Pair;

/// The last revision of the full snapshot.
pub const FIRST: u64 = 7;
/// A lease whose TTL was learned, and that.
pub const KNOWN: (i64, i64) = (77, 600);
/// A lease that nobody had learned of. Its user chose its id, as a hash perhaps: etcd takes any but zero.
pub const UNKNOWN: i64 = -78;
/// A lease that was granted and that no key names.
pub const IDLE: (i64, i64) = (79, 900);

/// All files below a folder, in order.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// The backup.
pub struct Recorded {
    pub folder: TempDir,
    pub store: Store,
    /// By which it is encrypted, if it is.
    pub pair: Option<Pair>,
    pub chain: Chain,
    /// Every entry of the history that it should restore to, in order.
    pub entries: Vec<(BucketKey, Vec<u8>)>,
}

/// The store in a folder.
pub fn open(folder: &Path) -> Store {
    let (address, keys) = (address(folder).parse().unwrap(), KeyFiles::default());
    Store::open(&Settings { address, options: BTreeMap::new(), credentials: None, ca: None, keys }).unwrap()
}

pub fn address(folder: &Path) -> String {
    format!("file://{}", folder.display())
}

pub fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

impl Recorded {
    /// The full snapshot alone.
    pub async fn full() -> Self {
        Self::begin(None).await
    }

    /// Encrypted: the full snapshot and deltas that end with these revisions.
    pub async fn encrypted(ends: &[u64]) -> Self {
        let mut recorded = Self::begin(Some(Pair::new())).await;
        for to in ends {
            recorded.record(*to).await;
        }
        recorded
    }

    async fn begin(pair: Option<Pair>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Arc::new(fs::read(small()).unwrap());
        let member = Served::start(Mood::Sound, Arc::new(move |number| (number == 0).then(|| database.to_vec())));
        let store = address(folder.path());
        let mut arguments = vec!["snapshot", "--endpoint", &member.url, "--store", &store, "--lineage", "blue"];
        arguments.extend(pair.iter().flat_map(|pair| ["--recipients-file", pair.recipients()]));
        let taken = run(&arguments);
        assert!(taken.success, "{}", taken.stderr);
        let keys = pair.as_ref().map(Pair::files).unwrap_or_default();
        let store = open(folder.path()).with_keys(keys);
        let keys = generations(&store, &"blue".parse().unwrap()).await.unwrap();
        let chain = Chain::read(&store, &keys[0]).await.unwrap();
        Self { folder, store, pair, chain, entries: events_after(&small(), 0) }
    }

    /// The full snapshot and deltas that end with these revisions.
    pub async fn with_deltas(ends: &[u64]) -> Self {
        let mut recorded = Self::full().await;
        for to in ends {
            recorded.record(*to).await;
        }
        recorded
    }

    /// When this revision was reached, as the deltas say: ten seconds for each.
    pub fn moment(&self, revision: u64) -> Timestamp {
        let seconds = i64::try_from((revision - FIRST) * 10).unwrap();
        self.chain.full.taken + SignedDuration::from_secs(seconds)
    }

    /// What the history holds up to a revision.
    pub fn entries_until(&self, revision: u64) -> Vec<(BucketKey, Vec<u8>)> {
        self.entries.iter().filter(|(key, _)| key.main <= revision).cloned().collect()
    }

    /// What of that is live: of each key the newest, and nothing of a deleted one. And the very last event.
    pub fn live_at(&self, revision: u64) -> Vec<(BucketKey, Vec<u8>)> {
        let all = self.entries_until(revision);
        let mut newest = BTreeMap::new();
        for (event, value) in &all {
            newest.insert(KeyValue::decode(&value[..]).unwrap().key, *event);
        }
        let last = all.last().map(|(event, _)| *event);
        let stays = |event: &BucketKey| {
            Some(*event) == last || (!event.tombstone && newest.values().any(|newest| newest == event))
        };
        all.into_iter().filter(|(event, _)| stays(event)).collect()
    }

    /// The folder of its data objects.
    pub fn data_folder(&self) -> PathBuf {
        self.folder.path().join(self.chain.key.data_folder().as_str())
    }

    /// The data object of the delta with this number.
    pub fn data_of(&self, delta: usize) -> PathBuf {
        self.data_folder().join(self.chain.links[delta].delta.data.name.as_str())
    }

    fn seal(&self) -> Seal {
        Seal::of(self.store.keys()).unwrap()
    }

    /// Runs a command of the agent on this store, without any key.
    pub fn run(&self, command: &str, more: &[&str]) -> Ended {
        let store = address(self.folder.path());
        let mut arguments = vec![command, "--store", &store, "--lineage", "blue", "--output", "json"];
        arguments.extend(more);
        run(&arguments)
    }

    /// Begins another generation, with this database, of the same revision.
    pub async fn replace_full(&mut self, database: &Path) {
        self.goes_on_with(database, FIRST).await;
    }

    /// Begins another generation, with this database, which ends with this revision.
    pub async fn goes_on_with(&mut self, database: &Path, at: u64) {
        let content = fs::read(database).unwrap();
        let taken = Timestamp::now();
        let key = GenerationKey { name: GenerationName::new(taken), ..self.chain.key.clone() };
        let mut writer = DataWriter::new(&self.store, &key, &self.seal()).unwrap();
        writer.write(&content).await.unwrap();
        // Where etcd's hash would be, which nobody looks at after the snapshot was taken.
        writer.write(&[0; 32]).await.unwrap();
        let data = writer.finish().await.unwrap();
        let (header, database_bytes) = (Header::new(&key, Nonce::random(), &data), content.len() as u64);
        let full = Full { header, taken, revision: revision(at), database_bytes, data, ..self.chain.full.clone() };
        commit(&self.store, &key.full(), full.write()).await.unwrap();
        self.chain = Chain::read(&self.store, &key).await.unwrap();
        self.entries = self.entries_until(at);
    }

    /// Adds a delta that ends with this revision.
    pub async fn record(&mut self, to: u64) {
        let from = self.chain.head().next();
        let mut records = Vec::new();
        let (mut last, mut events, mut samples) = (Vec::new(), 0, Vec::new());
        for main in from.get()..=to {
            last.clear();
            for sub in 0..=main % 3 {
                let (key, value) = event(main, sub);
                write_record(&mut last, Record { key, value: &value }).unwrap();
                self.entries.push((key, value));
                events += 1;
            }
            records.extend_from_slice(&last);
            samples.push(Sample { at: self.moment(main), revision: revision(main) });
        }
        let seal = self.seal();
        let mut writer = DataWriter::new(&self.store, &self.chain.key, &seal).unwrap();
        writer.write(&records).await.unwrap();
        let data = writer.finish().await.unwrap();
        let delta = Delta {
            header: Header::new(&self.chain.key, Nonce::random(), &data),
            from,
            to: revision(to),
            previous: self.chain.head_hash(),
            events,
            last_events: seal.event_hash().of(&last),
            leases: [KNOWN, IDLE].map(|(id, ttl)| LeaseGrant { id, ttl }).to_vec(),
            samples,
            data,
        };
        let manifest = delta.write();
        commit(&self.store, &self.chain.key.delta(from), manifest.clone()).await.unwrap();
        self.chain.add(&manifest).unwrap();
    }

    /// The same full snapshot once more, as if it had been taken then.
    pub async fn taken_at(&self, taken: Timestamp) -> GenerationKey {
        let lineage: Lineage = "blue".parse().unwrap();
        let key = GenerationKey { lineage, cluster: self.chain.key.cluster.clone(), name: GenerationName::new(taken) };
        let header = Header::new(&key, Nonce::random(), &self.chain.full.data);
        let full = Full { header, taken, ..self.chain.full.clone() };
        let to = self.folder.path().join(key.data(&full.data.name).as_str());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(self.data_folder().join(full.data.name.as_str()), to).unwrap();
        commit(&self.store, &key.full(), full.write()).await.unwrap();
        key
    }
}

/// Puts and deletions of some keys, with and without leases, some of them large.
fn event(main: u64, sub: u64) -> (BucketKey, Vec<u8>) {
    let tombstone = main.is_multiple_of(5) && sub == 0;
    let key = BucketKey { main, sub, tombstone };
    let name = format!("key/{}", (main + sub) % 11).into_bytes();
    if tombstone {
        return (key, KeyValue { key: name, ..KeyValue::default() }.encode_to_vec());
    }
    let size = if main.is_multiple_of(13) { 100 << 10 } else { 20 };
    let lease = match main % 4 {
        1 => KNOWN.0,
        3 => UNKNOWN,
        _ => 0,
    };
    let mod_revision = i64::try_from(main).unwrap();
    let value = vec![main.to_le_bytes()[0]; size];
    let message = KeyValue { key: name, create_revision: mod_revision, mod_revision, version: 1, value, lease };
    (key, message.encode_to_vec())
}
