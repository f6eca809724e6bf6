//! Segments written here in etcd's form, whole, cut, torn, mutated and arbitrary. The rule under test: a log that holds an
//! entry, a vote or anything unproven is never called empty.

use proptest::prelude::*;

use super::super::read_bytes;
use super::*;

/// Writes segments as etcd's encoder does.
#[derive(Clone, Debug, Default)]
struct Writer {
    bytes: Vec<u8>,
    crc: u32,
}

impl Writer {
    /// A segment as `wal.Create` leaves it.
    fn fresh() -> Self {
        Self::default()
            .record(kind::CRC, &[])
            .record(kind::METADATA, &[8, 0x91, 0x32, 16, 0xaf, 0x07])
            .record(kind::SNAPSHOT, &[8, 0, 16, 0])
    }

    fn record(mut self, kind: u64, data: &[u8]) -> Self {
        if kind != kind::CRC {
            self.crc = crc32c::crc32c_append(self.crc, data);
        }
        let mut record = vec![8, u8::try_from(kind).unwrap(), 16];
        varint(self.crc.into(), &mut record);
        if !data.is_empty() {
            record.push(26);
            varint(data.len() as u64, &mut record);
            record.extend(data);
        }
        self.frame(&record)
    }

    fn frame(mut self, record: &[u8]) -> Self {
        let padding = record.len().next_multiple_of(FRAME) - record.len();
        let mut frame = (record.len() as u64).to_le_bytes();
        if padding != 0 {
            frame[7] = 0x80 | u8::try_from(padding).unwrap();
        }
        self.bytes.extend(frame);
        self.bytes.extend(record);
        self.bytes.extend(vec![0; padding]);
        self
    }

    /// As on disk: preallocated.
    fn preallocated(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len() + 8192, 0);
        bytes
    }
}

fn varint(mut number: u64, into: &mut Vec<u8>) {
    while number >= 0x80 {
        into.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    into.push(u8::try_from(number).unwrap());
}

const ENTRY: &[u8] = &[8, 0, 16, 1, 24, 1, 34, 3, b'a', b'b', b'c'];
const VOTE: &[u8] = &[8, 1, 16, 7, 24, 0];
const NO_VOTE: &[u8] = &[8, 0, 16, 0, 24, 0];

#[test]
fn a_fresh_segment_holds_nothing() {
    for writer in [Writer::default(), Writer::fresh(), Writer::fresh().record(kind::STATE, NO_VOTE)] {
        assert_eq!(read_bytes(&writer.bytes), Content::Nothing);
        assert_eq!(read_bytes(&writer.preallocated()), Content::Nothing);
    }
}

#[test]
fn entries_votes_and_snapshots_are_found() {
    let cases = [
        (kind::ENTRY, ENTRY, Content::Entry),
        (kind::ENTRY, &[], Content::Entry),
        (kind::STATE, VOTE, Content::HardState),
        (kind::STATE, &[8, 1, 16, 0, 24, 0], Content::HardState),
        (kind::STATE, &[0xff], Content::HardState),
        (kind::SNAPSHOT, &[8, 100, 16, 2], Content::Snapshot),
        (kind::SNAPSHOT, &[8, 0, 16, 0, 26, 2, 8, 1], Content::Snapshot),
        (kind::SNAPSHOT, &[8, 0, 16, 0], Content::Doubtful(Doubt::Order)),
        (kind::METADATA, ENTRY, Content::Doubtful(Doubt::Order)),
        (kind::CRC, &[], Content::Doubtful(Doubt::Order)),
        (0, &[], Content::Doubtful(Doubt::Order)),
        (6, b"x", Content::Doubtful(Doubt::Order)),
    ];
    for (kind, data, content) in cases {
        let writer = Writer::fresh().record(kind, data);
        assert_eq!(read_bytes(&writer.bytes), content, "{kind} {data:?}");
        assert_eq!(read_bytes(&writer.preallocated()), content, "{kind} {data:?}");
    }
}

#[test]
fn cut_anywhere_after_its_first_entry_a_log_is_never_empty() {
    let fresh = Writer::fresh();
    let whole = fresh.clone().record(kind::ENTRY, ENTRY);
    let entry = whole.bytes.len();
    let more = whole.record(kind::STATE, VOTE).record(kind::ENTRY, &[7; 2000]);
    for cut in entry..=more.bytes.len() {
        assert_eq!(read_bytes(&more.bytes[..cut]), Content::Entry, "cut at {cut}");
    }
    for cut in fresh.bytes.len() + 1..entry {
        assert_eq!(read_bytes(&more.bytes[..cut]), Content::Doubtful(Doubt::Cut), "cut at {cut}");
    }
}

#[test]
fn cut_before_its_first_entry_only_whole_records_are_called_nothing() {
    let fresh = Writer::fresh();
    let mut boundaries = vec![0];
    while let Some((frame, _)) = fresh.bytes[boundaries.iter().sum::<usize>()..].split_first_chunk::<FRAME>() {
        let (length, padding) = lengths(*frame).unwrap();
        boundaries.push(FRAME + length + padding);
    }
    let ends: Vec<usize> = (1..=boundaries.len()).map(|count| boundaries[..count].iter().sum()).collect();
    assert_eq!(ends.len(), 4);
    for cut in 0..=fresh.bytes.len() {
        assert_eq!(read_bytes(&fresh.bytes[..cut]) == Content::Nothing, ends.contains(&cut), "cut at {cut}");
    }
}

#[test]
fn a_last_record_whose_last_sector_never_arrived_is_the_end() {
    let whole = Writer::fresh().record(kind::ENTRY, &[7; 2000]);
    for sector in (1..4).map(|n| n * SECTOR) {
        let mut torn = whole.preallocated();
        torn[sector..].fill(0);
        assert_eq!(read_bytes(&torn), Content::Nothing, "zeros from {sector}");
    }
    let mut lost_middle = whole.preallocated();
    lost_middle[SECTOR..2 * SECTOR].fill(0);
    assert_eq!(read_bytes(&lost_middle), Content::Doubtful(Doubt::Record));
    let mut followed = whole.record(kind::ENTRY, ENTRY).preallocated();
    followed[SECTOR..2048].fill(0);
    assert_ne!(read_bytes(&followed), Content::Nothing);
}

#[test]
fn whatever_is_no_proof_is_doubtful() {
    let fresh = Writer::fresh();
    let mut flipped = fresh.clone();
    flipped.bytes[FRAME + 20] ^= 1;
    assert!(matches!(read_bytes(&flipped.bytes), Content::Doubtful(Doubt::Frame | Doubt::Record)));

    let mut after = fresh.preallocated();
    *after.last_mut().unwrap() = 1;
    assert_eq!(read_bytes(&after), Content::Doubtful(Doubt::Tail));

    for frame in [[0, 0, 0, 0, 0, 0, 0, 0x80], [3, 0, 0, 0, 0, 0, 0, 0], [8, 0, 0, 0, 0, 0, 0, 0x88], [0xff; 8]] {
        let mut odd = fresh.clone();
        odd.bytes.extend(frame);
        assert_eq!(read_bytes(&odd.bytes), Content::Doubtful(Doubt::Frame), "{frame:?}");
    }
    let large = fresh.clone().frame(&vec![1; MAX_RECORD + 1]);
    assert_eq!(read_bytes(&large.bytes), Content::Doubtful(Doubt::Frame));
    let broken_chain = Writer { crc: 7, ..fresh.clone() }.record(kind::STATE, NO_VOTE);
    assert_eq!(read_bytes(&broken_chain.bytes), Content::Doubtful(Doubt::Record));
    assert_eq!(read(&[][..], MAX_SEGMENT + 1).unwrap(), Content::Doubtful(Doubt::Size));
}

#[test]
fn a_failing_file_is_an_error() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("planted"))
        }
    }
    assert!(read(Failing, 10).is_err());
}

/// Logs with records of all types, and whether one of them matters.
fn logs() -> impl Strategy<Value = (Writer, bool)> {
    let record = prop_oneof![
        Just((kind::STATE, NO_VOTE.to_vec())),
        Just((kind::STATE, VOTE.to_vec())),
        // Without zeros: a broken entry whose last sector is of zeros can't be told from a torn one.
        prop::collection::vec(1_u8.., 0..1500).prop_map(|data| (kind::ENTRY, data)),
        (1_u8..100).prop_map(|index| (kind::SNAPSHOT, vec![8, index, 16, 1])),
    ];
    prop::collection::vec(record, 0..6).prop_map(|records| {
        let mut matters = false;
        let mut writer = Writer::fresh();
        for (kind, data) in records {
            matters |= match kind {
                kind::STATE => data == VOTE,
                kind => kind == kind::ENTRY || kind == kind::SNAPSHOT,
            };
            writer = writer.record(kind, &data);
        }
        (writer, matters)
    })
}

proptest! {
    #[test]
    fn any_bytes_have_an_answer(bytes: Vec<u8>) {
        let _ = read_bytes(&bytes);
    }

    #[test]
    fn bytes_that_are_no_frame_never_pass_for_the_end(tail in prop::collection::vec(1_u8.., FRAME..64)) {
        let mut writer = Writer::fresh();
        writer.bytes.extend(&tail);
        prop_assert_eq!(read_bytes(&writer.preallocated()), Content::Doubtful(Doubt::Frame));
    }

    #[test]
    fn a_log_is_empty_exactly_if_nothing_in_it_matters((writer, matters) in logs()) {
        prop_assert_eq!(read_bytes(&writer.preallocated()) == Content::Nothing, !matters);
    }

    #[test]
    fn one_changed_byte_never_makes_a_log_empty((writer, matters) in logs(), at: prop::sample::Index, to: u8) {
        prop_assume!(matters);
        let mut bytes = writer.preallocated();
        bytes[at.index(writer.bytes.len())] = to;
        prop_assert_ne!(read_bytes(&bytes), Content::Nothing);
    }
}

#[test]
fn no_changed_byte_of_a_small_log_makes_it_empty() {
    let entry = Writer::fresh().record(kind::ENTRY, ENTRY);
    let vote = Writer::fresh().record(kind::STATE, NO_VOTE).record(kind::STATE, VOTE);
    for writer in [&entry, &vote, &entry.clone().record(kind::STATE, VOTE)] {
        let whole = writer.preallocated();
        for at in 0..writer.bytes.len() {
            for to in 0..=u8::MAX {
                let mut bytes = whole.clone();
                bytes[at] = to;
                assert_ne!(read_bytes(&bytes), Content::Nothing, "byte {at} changed to {to}");
            }
        }
    }
}
