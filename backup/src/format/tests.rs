//! The format against what it must survive: damage, other writers, lost answers, pieces in the wrong place.

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::bolt::mvcc::BucketKey;
use crate::store::tests::faulty::{Fault, Faulty, sound};
use crate::store::{Key, Store};

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

pub fn generation(second: i64) -> GenerationKey {
    GenerationKey { lineage: "blue".parse().unwrap(), cluster: Cluster::of(7), name: GenerationName::new(at(second)) }
}

fn data(bytes: u64) -> Data {
    let frames = bytes.div_ceil(FRAME as u64);
    Data {
        name: Nonce::random(),
        blake3: Hash::of(b"x"),
        plain_bytes: bytes,
        frames: vec![9; usize::try_from(frames).unwrap()],
        age: None,
    }
}

pub(super) fn full(key: &GenerationKey, last: u64, second: i64) -> Full {
    let data = data(9_000_032);
    Full {
        header: Header::new(key, Nonce::random(), &data),
        etcd_version: "3.6.16".into(),
        revision: revision(last),
        compact_revision: revision(0),
        last_events: Hash::of(b"events"),
        auth_revision: 1,
        taken: at(second),
        database_bytes: 9_000_000,
        data,
    }
}

fn delta(chain: &Chain, to: u64, samples: &[(i64, u64)]) -> Delta {
    let data = data(1);
    Delta {
        header: Header::new(&chain.key, Nonce::random(), &data),
        from: chain.head().next(),
        to: revision(to),
        previous: chain.head_hash(),
        events: 100,
        last_events: Hash::of(&to.to_le_bytes()),
        leases: vec![LeaseGrant { id: 5, ttl: 60 }],
        samples: samples.iter().map(|(at_, rev)| Sample { at: at(*at_), revision: revision(*rev) }).collect(),
        data,
    }
}

/// A generation of a full at revision 10 and deltas that end at these revisions.
pub async fn stored(store: &Store, second: i64, ends: &[(u64, i64)]) -> Chain {
    let key = generation(second);
    let first = full(&key, 10, second);
    commit(store, &key.full(), first.write()).await.unwrap();
    let mut chain = Chain::read(store, &key).await.unwrap();
    for (to, second) in ends {
        let next = delta(&chain, *to, &[(*second, *to)]);
        commit(store, &key.delta(next.from), next.write()).await.unwrap();
        chain.extend(store).await.unwrap();
    }
    chain
}

#[tokio::test]
async fn a_chain_is_read_as_it_was_written() {
    let store = sound();
    let chain = stored(&store, 100, &[(11, 110), (40, 120), (41, 130)]).await;
    let read = Chain::read(&store, &chain.key).await.unwrap();
    assert_eq!(read, chain);
    assert_eq!((read.head(), read.last_moment()), (revision(41), at(130)));
    assert_eq!(generations(&store, &chain.key.lineage).await.unwrap(), std::slice::from_ref(&chain.key));
    assert!(generations(&store, &"other".parse().unwrap()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_missing_exchanged_or_damaged_manifest_is_named() {
    let store = sound();
    let chain = stored(&store, 100, &[(20, 110), (30, 120), (40, 130)]).await;
    let second = chain.key.delta(revision(21));
    let good = store.read(&second, MANIFEST_LIMIT).await.unwrap().unwrap();

    store.delete(&second).await.unwrap();
    let error = Chain::read(&store, &chain.key).await.unwrap_err();
    assert!(
        matches!(&error, ChainError::Gap { missing, after, .. } if *missing == second && after.get() == 20),
        "{error}"
    );

    // The same range by another writer: the one after it was chained to the first.
    let mut other = Delta::read(&good, &chain.key, revision(21)).unwrap();
    other.header.writer = Nonce::random();
    store.create(&second, other.write().into()).await.unwrap();
    let error = Chain::read(&store, &chain.key).await.unwrap_err();
    assert!(matches!(&error, ChainError::Broken(key) if *key == chain.key.delta(revision(31))), "{error}");

    store.delete(&second).await.unwrap();
    let mut flipped = good.to_vec();
    *flipped.iter_mut().find(|byte| **byte == b'3').unwrap() = b'!';
    store.create(&second, flipped.into()).await.unwrap();
    let error = Chain::read(&store, &chain.key).await.unwrap_err();
    assert!(matches!(&error, ChainError::Manifest { key, .. } if *key == second), "{error}");

    store.delete(&chain.key.full()).await.unwrap();
    assert!(matches!(Chain::read(&store, &chain.key).await, Err(ChainError::NoFull(_))));
}

#[tokio::test]
async fn a_manifest_in_another_place_is_refused() {
    let store = sound();
    let chain = stored(&store, 100, &[(20, 110)]).await;
    let mut elsewhere = chain.key.clone();
    elsewhere.cluster = Cluster::of(8);
    let fault = Full::read(&chain.full.write(), &elsewhere).unwrap_err();
    assert!(matches!(fault, ManifestFault::OtherGeneration(_)));
    let bytes = chain.links[0].delta.write();
    assert!(matches!(Delta::read(&bytes, &chain.key, revision(12)), Err(ManifestFault::Contradiction(_))));
}

#[tokio::test(start_paused = true)]
async fn a_commit_whose_answer_was_lost_or_false_is_told_from_one_that_another_writer_won() {
    use Fault::{After, AfterAsConflict, Before, FalseConflict, None};
    let cases: [&[Fault]; 7] = [
        &[None],
        &[After],
        &[AfterAsConflict],
        &[Before, Before, None],
        &[FalseConflict, None],
        &[Before, After],
        &[FalseConflict, Before, AfterAsConflict],
    ];
    for faults in cases {
        let store = Faulty::puts(faults).store();
        let key = Key::new("m");
        commit(&store, &key, b"mine".to_vec()).await.unwrap();
        assert_eq!(store.read(&key, 10).await.unwrap().unwrap(), "mine", "{faults:?}");
        for other in ["his.", "his", "his, and longer"] {
            let error = commit(&store, &key, other.into()).await.unwrap_err();
            assert!(matches!(error, CommitError::Lost(_)), "{error}");
        }
        assert_eq!(store.read(&key, 10).await.unwrap().unwrap(), "mine");
    }
    let store = Faulty::puts(&[Before; 9]).store();
    assert!(matches!(commit(&store, &Key::new("m"), vec![1]).await, Err(CommitError::Store { .. })));
}

#[tokio::test]
async fn two_writers_of_one_range_have_one_winner() {
    let store = sound();
    let key = Key::new("m");
    let writers = (0..16_u8).map(|writer| commit(&store, &key, vec![writer; 8]));
    let results = futures::future::join_all(writers).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
}

pub(super) fn noise(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    // Half of it can be compressed.
    (0..length).map(|at| if at % 512 < 256 { random.u8(..) } else { 0 }).collect()
}

pub(super) async fn all(mut reader: DataReader) -> Result<Vec<u8>, DataError> {
    let mut read = Vec::new();
    while let Some(piece) = reader.next().await? {
        read.extend(piece);
    }
    Ok(read)
}

#[tokio::test]
async fn data_comes_back_whole_by_stream_and_by_frame() {
    let (store, key) = (sound(), generation(1));
    let object = |data: &Data| DataObject::new(&store, &key, data).unwrap();
    for length in [0, 1, FRAME, 3 * FRAME + 5] {
        let plain = noise(length);
        let mut writer = DataWriter::new(&store, &key, &Seal::Open).unwrap();
        for piece in plain.chunks(1_000_003) {
            writer.write(piece).await.unwrap();
        }
        let data = writer.finish().await.unwrap();
        assert_eq!((data.plain_bytes, data.frames.len()), (length as u64, length.div_ceil(FRAME)));
        assert!(length < 1000 || data.stored_bytes() < length as u64 * 6 / 10);
        assert_eq!(all(DataReader::new(&object(&data))).await.unwrap(), plain);
        for (frame, piece) in plain.chunks(FRAME).enumerate() {
            assert_eq!(object(&data).frame(frame).await.unwrap().unwrap(), piece);
        }
        assert_eq!(object(&data).frame(data.frames.len()).await.unwrap(), None);
        let object = store.read(&key.data(&data.name), u64::MAX).await.unwrap().unwrap();
        assert_eq!(Hash::of(&object), data.blake3);
        if length > 0 {
            assert_eq!(zstd::decode_all(&object[..]).unwrap(), plain, "any zstd reads it");
        }
    }
}

#[tokio::test]
async fn damaged_data_is_never_taken_for_whole() {
    let (store, key) = (sound(), generation(1));
    let object = |data: &Data| DataObject::new(&store, &key, data).unwrap();
    let mut writer = DataWriter::new(&store, &key, &Seal::Open).unwrap();
    writer.write(&noise(2 * FRAME + 9)).await.unwrap();
    let data = writer.finish().await.unwrap();
    let name = key.data(&data.name);
    let good = store.read(&name, u64::MAX).await.unwrap().unwrap();
    let replace = async |bytes: Vec<u8>| {
        store.delete(&name).await.unwrap();
        store.create(&name, bytes.into()).await.unwrap();
        all(DataReader::new(&object(&data))).await.unwrap_err().to_string()
    };
    for at in [0, 5, good.len() / 2, good.len() - 1] {
        let mut flipped = good.to_vec();
        flipped[at] ^= 0x10;
        let error = replace(flipped).await;
        assert!(error.contains(name.as_str()), "{at}: {error}");
    }
    let error = replace(good[..good.len() - 1].to_vec()).await;
    assert!(error.contains(name.as_str()), "{error}");
    // Another sound object of the same shape.
    let mut other = DataWriter::new(&store, &key, &Seal::Open).unwrap();
    other.write(&vec![1; 2 * FRAME + 9]).await.unwrap();
    let other = other.finish().await.unwrap();
    let swapped = Data { name: other.name, ..data.clone() };
    assert!(all(DataReader::new(&object(&swapped))).await.is_err());
    store.delete(&name).await.unwrap();
    let error = all(DataReader::new(&object(&data))).await.unwrap_err().to_string();
    assert!(error.contains(name.as_str()) && error.contains("not there"), "{error}");
}

/// What is restored if these are all there are.
fn chosen(chains: &[Chain], target: Target) -> Result<(GenerationKey, u64), ChoiceError> {
    let spans: Vec<_> = chains.iter().map(Span::from).collect();
    let Chosen { key, others: _, still_until } = choose(&spans, target)?;
    let chain = chains.iter().find(|chain| chain.key == *key).unwrap().clone();
    Choice::of(chain, target, still_until).map(|choice| (key.clone(), choice.revision.get()))
}

#[tokio::test]
async fn what_to_restore_is_chosen_among_histories() {
    let store = sound();
    let old = stored(&store, 100, &[(20, 110), (30, 120)]).await;
    let forked = stored(&store, 200, &[(25, 210)]).await;
    let chains = [old.clone(), forked.clone()];
    let chosen = |target| chosen(&chains, target);
    assert_eq!(chosen(Target::Latest).unwrap(), (forked.key.clone(), 25));
    assert_eq!(chosen(Target::Revision(revision(28))).unwrap(), (old.key.clone(), 28));
    assert_eq!(chosen(Target::Revision(revision(22))).unwrap(), (forked.key.clone(), 22));
    let spans: Vec<_> = chains.iter().map(Span::from).collect();
    assert_eq!(choose(&spans, Target::Revision(revision(22))).unwrap().others, [&old.key]);
    assert!(chosen(Target::Revision(revision(31))).unwrap_err().to_string().contains("1 to 30, 1 to 25"));

    assert_eq!(chosen(Target::Time(at(119))).unwrap(), (old.key.clone(), 20));
    assert_eq!(chosen(Target::Time(at(120))).unwrap(), (old.key.clone(), 30));
    assert_eq!(chosen(Target::Time(at(205))).unwrap(), (forked.key.clone(), 10));
    assert!(matches!(chosen(Target::Time(at(99))), Err(ChoiceError::TooEarly { .. })));
    for unrecorded in [150, 300] {
        assert!(matches!(chosen(Target::Time(at(unrecorded))), Err(ChoiceError::NotRecorded { .. })), "{unrecorded}");
    }
    assert_eq!(choose(&[], Target::Latest), Err(ChoiceError::Nothing));
}

#[tokio::test]
async fn a_moment_before_that_of_a_clock_that_was_ahead_is_not_known() {
    let store = sound();
    let ahead =
        [stored(&store, 100, &[(20, 110), (30, 500), (35, 500), (40, 500), (50, 510), (60, 520), (70, 520)]).await];
    let chosen = |second| chosen(&ahead, Target::Time(at(second)));
    for second in [111, 499] {
        let said = chosen(second).unwrap_err().to_string();
        assert!(said.contains("a clock was ahead") && said.contains("revisions 20 to 40"), "{said}");
    }
    // Two of one moment are what somebody leaves who takes over with a clock that is a little behind.
    let known = [109, 110, 500, 509, 510, 519].map(|second| chosen(second).unwrap().1);
    assert_eq!(known, [10, 20, 40, 40, 50, 50]);
}

#[tokio::test]
async fn what_nobody_recorded_is_in_the_history_of_the_next_snapshot() {
    let store = sound();
    let old = stored(&store, 100, &[(20, 110)]).await;
    let later = |second, first, compacted| {
        let store = store.clone();
        async move {
            let mut chain = stored(&store, second, &[]).await;
            (chain.full.revision, chain.full.compact_revision) = (revision(first), revision(compacted));
            chain
        }
    };
    let (next, last) = (later(200, 50, 30).await, later(300, 80, 40).await);
    let chains = [old.clone(), last.clone(), next.clone()];
    let found = |wanted| chosen(&chains, Target::Revision(revision(wanted)));
    assert_eq!(found(20).unwrap(), (old.key.clone(), 20), "what was recorded comes from there");
    for (wanted, of) in [(30, &next), (49, &next), (51, &last), (79, &last)] {
        assert_eq!(found(wanted).unwrap(), (of.key.clone(), wanted), "{wanted}");
    }
    let spans: Vec<_> = chains.iter().map(Span::from).collect();
    assert_eq!(choose(&spans, Target::Revision(revision(45))).unwrap().others, [&last.key], "it has that as well");
    assert!(choose(&spans, Target::Revision(revision(35))).unwrap().others.is_empty());
    // What was recorded last before it, if that is still to be seen.
    let before = |of: &Chain, wanted| recorded_before(&spans, &Span::from(of), revision(wanted)).map(|span| &span.key);
    assert_eq!((before(&next, 45), before(&last, 55)), (None, Some(&next.key)));
    let uncompacted = Span { compacted: revision(19), ..Span::from(&next) };
    assert_eq!(recorded_before(&spans, &uncompacted, revision(45)).map(|span| &span.key), Some(&old.key));
    // A cluster that was backed up later comes first, whatever the numbers say.
    let mut other = last.clone();
    (other.key.cluster, other.full.taken) = ("0000000000000008".parse().unwrap(), at(400));
    let chains = [next.clone(), other.clone()];
    assert_eq!(chosen(&chains, Target::Revision(revision(45))).unwrap(), (other.key, 45));
    // Before any compaction a snapshot has all that there ever was: the first revision is 1.
    let first = old.full.compact_revision.max(Revision::FIRST).get();
    assert_eq!(found(first).unwrap(), (old.key.clone(), first));
    for gone in [0, 29, 81] {
        let said = found(gone).unwrap_err().to_string();
        assert!(said.contains("30 to 50") && said.contains("40 to 80"), "{gone}: {said}");
    }
}

#[tokio::test]
async fn a_moment_is_found_where_the_record_went_on_beside_a_later_snapshot() {
    let store = sound();
    let record = stored(&store, 100, &[(20, 110), (90, 500)]).await;
    let snapshot = stored(&store, 300, &[]).await;
    let chosen = |chains: &[Chain], second| chosen(chains, Target::Time(at(second)));
    let both = [record.clone(), snapshot.clone()];
    assert_eq!(chosen(&both, 300).unwrap(), (snapshot.key.clone(), 10), "the later one holds it");
    assert_eq!(chosen(&both, 500).unwrap(), (record.key.clone(), 90));
    assert!(matches!(chosen(&both, 501), Err(ChoiceError::NotRecorded { .. })));
    // What another cluster recorded meanwhile is another history.
    let mut other = record;
    other.key.cluster = "0000000000000008".parse().unwrap();
    assert!(matches!(chosen(&[other, snapshot], 500), Err(ChoiceError::NotRecorded { .. })));
}

#[tokio::test]
async fn a_moment_of_rest_before_a_generation_that_begins_where_the_last_one_ended_is_known() {
    let store = sound();
    let record = stored(&store, 100, &[(20, 110)]).await;
    let mut next = stored(&store, 200, &[]).await;
    let at_rest = |next: &Chain| chosen(&[record.clone(), next.clone()], Target::Time(at(150)));
    assert!(matches!(at_rest(&next), Err(ChoiceError::NotRecorded { .. })), "it begins elsewhere");
    (next.full.revision, next.full.last_events) = (revision(20), record.last_events());
    assert_eq!(at_rest(&next).unwrap(), (record.key.clone(), 20));
    next.full.last_events = Hash::of(b"another history's");
    assert!(matches!(at_rest(&next), Err(ChoiceError::NotRecorded { .. })), "it has another history");
}

#[tokio::test]
async fn a_moment_before_a_full_snapshot_that_was_begun_beside_the_record_is_known() {
    let store = sound();
    let record = stored(&store, 100, &[(20, 110)]).await;
    let moment = at(110).checked_add(SignedDuration::from_millis(500)).unwrap();
    let chosen = |next: &Chain| chosen(&[record.clone(), next.clone()], Target::Time(moment));
    // The first bytes of its revision 10 came when 20 was already recorded in the other one.
    let mut next = stored(&store, 111, &[]).await;
    assert_eq!(chosen(&next).unwrap(), (record.key.clone(), 20));
    let (same, other) = (next.key.clone(), "0000000000000008".parse().unwrap());
    next.key.cluster = other;
    assert!(matches!(chosen(&next), Err(ChoiceError::NotRecorded { .. })), "it is another cluster's");
    next.key = same;
    next.full.revision = revision(21);
    assert!(matches!(chosen(&next), Err(ChoiceError::NotRecorded { .. })), "it begins behind the end");
    let later = stored(&store, 112, &[]).await;
    assert!(matches!(chosen(&later), Err(ChoiceError::NotRecorded { .. })), "it may have another history");
}

#[tokio::test]
async fn a_moment_of_rest_is_known_also_if_somebody_took_a_snapshot_beside_the_record_before() {
    let store = sound();
    let record = stored(&store, 100, &[(20, 110), (90, 500)]).await;
    let beside = stored(&store, 300, &[]).await;
    let chosen = |chains: &[Chain]| chosen(chains, Target::Time(at(550)));
    let both = [record.clone(), beside.clone()];
    let nearest = ChoiceError::NotRecorded { wanted: at(550), end: at(500), revision: revision(90) };
    assert_eq!(chosen(&both), Err(nearest));
    let mut next = stored(&store, 600, &[]).await;
    (next.full.revision, next.full.last_events) = (revision(90), record.last_events());
    assert_eq!(chosen(&[record.clone(), beside, next]).unwrap(), (record.key.clone(), 90));
}

#[test]
fn a_later_version_is_told_from_damage() {
    let key = generation(1);
    let mut later = full(&key, 1, 1);
    later.header.format = 3;
    assert!(matches!(Full::read(&later.write(), &key), Err(ManifestFault::Version(3))));
    let mut unknown: serde_json::Value = serde_json::from_slice(&full(&key, 1, 1).write()).unwrap();
    unknown["secret"] = true.into();
    let bytes = serde_json::to_vec(&unknown).unwrap();
    assert!(matches!(Full::read(&bytes, &key), Err(ManifestFault::Shape(_))));
    assert!(matches!(Full::read(b"", &key), Err(ManifestFault::Shape(_))));
}

#[tokio::test]
async fn a_manifest_that_is_too_large_is_damaged_and_the_store_is_well() {
    let store = sound();
    let mut chain = stored(&store, 100, &[(20, 110)]).await;
    let too_large = Bytes::from(vec![b' '; usize::try_from(MANIFEST_LIMIT).unwrap() + 1]);
    for damaged in [chain.key.delta(revision(21)), chain.key.full()] {
        store.delete(&damaged).await.unwrap();
        store.create(&damaged, too_large.clone()).await.unwrap();
        let faults = [Chain::read(&store, &chain.key).await.err(), Extent::read(&store, &chain.key).await.err()];
        for fault in faults.map(Option::unwrap) {
            assert!(matches!(&fault, ChainError::Manifest { key, .. } if *key == damaged), "{fault}");
        }
    }
    let fault = chain.extend(&store).await.unwrap_err();
    assert!(matches!(fault, ChainError::Manifest { .. }), "{fault}");
}

/// What a delta's numbers must not be.
#[tokio::test]
async fn contradictions_are_refused() {
    let store = sound();
    let chain = stored(&store, 100, &[]).await;
    let good = delta(&chain, 20, &[(110, 12), (120, 20)]);
    let refused = |change: &dyn Fn(&mut Delta)| {
        let mut bad = good.clone();
        change(&mut bad);
        assert!(matches!(Delta::read(&bad.write(), &chain.key, good.from), Err(ManifestFault::Contradiction(_))));
    };
    Delta::read(&good.write(), &chain.key, good.from).unwrap();
    refused(&|delta| delta.to = revision(10));
    refused(&|delta| delta.events = 9);
    refused(&|delta| delta.samples.reverse());
    refused(&|delta| delta.samples[0].revision = revision(10));
    refused(&|delta| delta.leases.push(LeaseGrant { id: 5, ttl: 1 }));
    refused(&|delta| delta.leases[0].id = 0);
    refused(&|delta| delta.leases[0].ttl = -1);
    refused(&|delta| delta.data.frames.push(1));
    refused(&|delta| delta.data.frames[0] = u32::MAX);
    let mut bad = chain.full.clone();
    bad.database_bytes += 1;
    assert!(matches!(Full::read(&bad.write(), &chain.key), Err(ManifestFault::Contradiction(_))));
}

fn records() -> impl Strategy<Value = Vec<(BucketKey, Vec<u8>)>> {
    let key =
        (0..1000_u64, 0..9_u64, any::<bool>()).prop_map(|(main, sub, tombstone)| BucketKey { main, sub, tombstone });
    proptest::collection::vec((key, proptest::collection::vec(any::<u8>(), 0..300)), 0..40)
}

proptest! {
    #[test]
    fn records_survive_any_cut(records in records(), piece in 1..200_usize) {
        let mut bytes = Vec::new();
        for (key, value) in &records {
            write_record(&mut bytes, Record { key: *key, value }).unwrap();
        }
        let mut reader = RecordReader::new();
        let mut read = Vec::new();
        for piece in bytes.chunks(piece) {
            reader.feed(piece);
            while let Some(Record { key, value }) = reader.take().unwrap() {
                read.push((key, value.to_vec()));
            }
        }
        prop_assert_eq!(reader.finish(), Ok(()));
        prop_assert_eq!(read, records);
    }

    #[test]
    fn any_bytes_are_records_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let mut reader = RecordReader::new();
        reader.feed(&bytes);
        let mut read = 0;
        while let Ok(Some(record)) = reader.take() {
            read += record.value.len() + 22;
        }
        prop_assert!(read <= bytes.len() + 22);
    }

    #[test]
    fn a_changed_manifest_is_refused_or_still_consistent(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let key = generation(1);
        let mut bytes = full(&key, 9, 1).write();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(full) = Full::read(&bytes, &key) {
            prop_assert!(full.compact_revision <= full.revision);
            prop_assert_eq!(full.data.plain_bytes, full.database_bytes + 32);
        }
    }
}

#[test]
fn a_cut_record_is_no_end() {
    let mut bytes = Vec::new();
    let key = BucketKey { main: 1, sub: 0, tombstone: false };
    write_record(&mut bytes, Record { key, value: b"value" }).unwrap();
    let mut reader = RecordReader::new();
    reader.feed(&Bytes::from(bytes)[..20]);
    assert_eq!(reader.take(), Ok(None));
    assert_eq!(reader.finish(), Err(RecordFault::Cut));
}
