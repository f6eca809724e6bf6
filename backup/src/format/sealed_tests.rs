//! Encrypted data against what it must survive: any cut into parts, any flipped bit, any lost end, other keys; and what anybody
//! with age can read.

use age::secrecy::ExposeSecret;
use age::x25519::Identity;
use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::seal::SealFault;
use super::tests::{all, full, generation, noise};
use super::unseal::{Layout, Opener};
use super::*;
use crate::keys::{Identities, KeyFiles, KeysError};
use crate::store::tests::faulty::sound;
use crate::store::{Key, Store, StoreError};

/// A pair of keys in files.
struct Pair {
    folder: TempDir,
    identity: Identity,
}

impl Pair {
    fn new() -> Self {
        let (folder, identity) = (tempfile::tempdir().unwrap(), Identity::generate());
        std::fs::write(folder.path().join("recipients"), identity.to_public().to_string()).unwrap();
        std::fs::write(folder.path().join("identity"), identity.to_string().expose_secret()).unwrap();
        Self { folder, identity }
    }

    fn files(&self) -> KeyFiles {
        let path = |name| Some(self.folder.path().join(name));
        KeyFiles { recipients: path("recipients"), identity: path("identity") }
    }

    fn seal(&self) -> Seal {
        Seal::of(&self.files()).unwrap()
    }
}

async fn written((store, key): (&Store, &GenerationKey), seal: &Seal, plain: &[u8]) -> Data {
    let mut writer = DataWriter::new(store, key, seal).unwrap();
    for piece in plain.chunks(1_000_003) {
        writer.write(piece).await.unwrap();
    }
    writer.finish().await.unwrap()
}

#[tokio::test]
async fn encrypted_data_comes_back_whole_by_stream_and_by_frame_and_any_age_reads_it() {
    let (pair, key) = (Pair::new(), generation(1));
    let store = sound().with_keys(pair.files());
    for length in [1, FRAME, 3 * FRAME + 5] {
        let plain = noise(length);
        let data = written((&store, &key), &pair.seal(), &plain).await;
        let object = DataObject::new(&store, &key, &data).unwrap();
        assert_eq!(all(DataReader::new(&object)).await.unwrap(), plain);
        for (frame, piece) in plain.chunks(FRAME).enumerate() {
            assert_eq!(object.frame(frame).await.unwrap().unwrap(), piece);
        }
        assert_eq!(object.frame(data.frames.len()).await.unwrap(), None);
        let stored = store.read(&key.data(&data.name), u64::MAX).await.unwrap().unwrap();
        assert_eq!((Hash::of(&stored), stored.len() as u64), (data.blake3, data.stored_bytes()));
        assert!(stored.starts_with(b"age-encryption.org/v1\n"));
        let compressed = age::decrypt(&pair.identity, &stored).unwrap();
        assert_eq!(compressed.len() as u64, data.compressed_bytes());
        assert_eq!(zstd::decode_all(&compressed[..]).unwrap(), plain, "age -d | zstd -d");
    }
}

#[tokio::test]
async fn a_writer_reads_its_own_and_nobody_else_does_without_the_identity() {
    let (pair, other, key) = (Pair::new(), Pair::new(), generation(1));
    let plain = noise(FRAME + 1);
    let store = sound();
    let own = Identities::generate();
    let data = written((&store, &key), &pair.seal().readable_by(&own), &plain).await;
    assert_eq!(data.recipients(), written((&store, &key), &pair.seal(), b"x").await.recipients(), "it is not named");
    let object = DataObject::of_writer(&store, &key, &data, own);
    assert_eq!(object.frame(1).await.unwrap().unwrap(), plain[FRAME..]);
    let with = |keys: KeyFiles| DataObject::new(&store.clone().with_keys(keys), &key, &data);
    assert_eq!(all(DataReader::new(&with(pair.files()).unwrap())).await.unwrap(), plain);
    assert!(matches!(with(KeyFiles::default()), Err(DataError::Keys(KeysError::NoIdentity { .. }))));
    assert!(matches!(with(other.files()), Err(DataError::Keys(KeysError::OtherIdentity { .. }))));
    // Of another writer, whose header has a key of its own.
    let stranger = DataObject::of_writer(&store, &key, &data, Identities::generate());
    let error = stranger.frame(0).await.unwrap_err();
    assert!(matches!(error, DataError::Seal { fault: SealFault::Header(_), .. }), "{error}");
}

#[tokio::test]
async fn damaged_encrypted_data_is_never_taken_for_whole() {
    let (pair, key) = (Pair::new(), generation(1));
    let store = sound().with_keys(pair.files());
    let data = written((&store, &key), &pair.seal(), &noise(2 * FRAME + 9)).await;
    let name = key.data(&data.name);
    let good = store.read(&name, u64::MAX).await.unwrap().unwrap();
    let replace = async |bytes: Vec<u8>| {
        store.delete(&name).await.unwrap();
        store.create(&name, bytes.into()).await.unwrap();
        all(DataReader::new(&DataObject::new(&store, &key, &data).unwrap())).await.unwrap_err().to_string()
    };
    for at in [0, 30, 200, good.len() / 2, good.len() - 1] {
        let mut flipped = good.to_vec();
        flipped[at] ^= 0x10;
        let error = replace(flipped).await;
        assert!(error.contains(name.as_str()), "{at}: {error}");
    }
    let error = replace(good[..good.len() - 1].to_vec()).await;
    assert!(error.contains(name.as_str()), "{error}");
    // Another sound object to the same recipient, of the same size.
    let other = written((&store, &key), &pair.seal(), &noise(2 * FRAME + 9)).await;
    let swapped = Data { name: other.name, ..data.clone() };
    assert!(all(DataReader::new(&DataObject::new(&store, &key, &swapped).unwrap())).await.is_err());
}

#[test]
fn the_version_says_whether_the_data_is_encrypted() {
    let (pair, key) = (Pair::new(), generation(1));
    let plain = full(&key, 10, 1);
    assert_eq!((plain.header.format, Full::read(&plain.write(), &key).unwrap()), (VERSION, plain.clone()));
    let Seal::Age { recipients, .. } = pair.seal() else { panic!("it is encrypted") };
    let bytes = plain.data.compressed_bytes() + 16 + 216;
    let age = Age { recipients: recipients.fingerprints(), bytes };
    let data = Data { age: Some(age.clone()), ..plain.data.clone() };
    let sealed = Full { header: Header::new(&key, Nonce::random(), &data), data, ..plain.clone() };
    assert_eq!((sealed.header.format, Full::read(&sealed.write(), &key).unwrap()), (ENCRYPTED_VERSION, sealed.clone()));

    // A reader of version 1 alone looks at nothing but this number when it meets a field that it does not know.
    let text = String::from_utf8(sealed.write()).unwrap();
    assert!(text.starts_with("{\"header\":{\"format\":2,"), "{text}");
    let refused = |change: &dyn Fn(&mut Full)| {
        let mut bad = sealed.clone();
        change(&mut bad);
        let fault = Full::read(&bad.write(), &key).unwrap_err();
        assert!(matches!(fault, ManifestFault::Contradiction(_)), "{fault}");
    };
    refused(&|full| full.header.format = VERSION);
    refused(&|full| full.data.age = None);
    refused(&|full| full.data.age = Some(Age { recipients: Vec::new(), ..age.clone() }));
    refused(&|full| full.data.age = Some(Age { bytes: plain.data.compressed_bytes() + 16, ..age.clone() }));
    refused(&|full| full.data.age = Some(Age { bytes: 1 << 40, ..age.clone() }));
}

#[test]
fn a_guess_at_the_last_events_can_not_be_tried_on_a_manifest() {
    let (pair, records) = (Pair::new(), b"key and a short value");
    let hash = pair.seal().event_hash();
    assert_eq!(hash.of(records), pair.seal().event_hash().of(records), "another writer makes the same");
    assert_ne!(hash.of(records), Hash::of(records));
    assert_ne!(hash.of(records), Pair::new().seal().event_hash().of(records));
    assert_eq!(Seal::Open.event_hash().of(records), Hash::of(records));
    assert_eq!(format!("{hash:?}"), "Keyed");
}

/// Frames of these sizes, which are none of zstd's, encrypted: only how they lie in the object matters here.
struct Sealed {
    store: Store,
    key: Key,
    frames: Vec<u8>,
    stored: Vec<u8>,
    layout: Layout,
    own: Identities,
    sizes: Vec<u32>,
}

impl Sealed {
    async fn new(sizes: Vec<u32>) -> Self {
        let (pair, own, store) = (Pair::new(), Identities::generate(), sound());
        let frames: Vec<u8> = noise(sizes.iter().map(|size| usize::try_from(*size).unwrap()).sum());
        let mut sealer = pair.seal().readable_by(&own).sealer().unwrap().unwrap();
        let mut stored = sealer.push(&frames).unwrap();
        let (rest, recipients) = sealer.finish().unwrap();
        stored.extend(rest);
        let age = Some(Age { recipients, bytes: stored.len() as u64 });
        let (name, blake3) = (Nonce::random(), Hash::of(&stored));
        let layout = Layout::of(&Data { name, blake3, plain_bytes: 1, frames: sizes.clone(), age }).unwrap();
        let key = Key::new("x");
        store.create(&key, stored.clone().into()).await.unwrap();
        Self { store, key, frames, stored, layout, own, sizes }
    }

    async fn replaced(&self, stored: Vec<u8>) -> Self {
        let (store, key) = (sound(), self.key.clone());
        store.create(&key, stored.clone().into()).await.unwrap();
        let (frames, own, sizes) = (self.frames.clone(), self.own.clone(), self.sizes.clone());
        Self { store, key, frames, stored, layout: self.layout, own, sizes }
    }

    /// All frames, each by itself, and what was fetched for them, without what came twice.
    async fn read(&self) -> Result<(Vec<u8>, Vec<u8>), String> {
        let opener = Opener::new(self.layout, self.own.clone());
        let (mut read, mut fetched, mut begin) = (Vec::new(), Vec::new(), 0);
        for size in &self.sizes {
            let end = begin + u64::from(*size);
            let got = opener
                .fetch(&self.store, &self.key, &(begin..end))
                .await
                .map_err(|error: StoreError| error.to_string())?;
            let (at, stored, part): (u64, Bytes, _) = got;
            fetched.truncate(usize::try_from(at).unwrap());
            assert_eq!(fetched.len() as u64, at, "nothing is left out");
            fetched.extend_from_slice(&stored);
            let mut part = part.open().map_err(|fault| fault.to_string())?;
            read.extend(part.take(usize::try_from(*size).unwrap()).map_err(|fault| fault.to_string())?);
            part.end().map_err(|fault| fault.to_string())?;
            begin = end;
        }
        Ok((read, fetched))
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Sizes of frames, many of which end where a chunk of age's does.
fn sizes() -> impl Strategy<Value = Vec<u32>> {
    let chunk = 64_u32 << 10;
    let size = prop_oneof![1..200_u32, Just(chunk), Just(2 * chunk), chunk - 3..chunk + 3, 1..5 * chunk];
    proptest::collection::vec(size, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn frames_of_any_sizes_are_read_each_by_itself(sizes in sizes()) {
        block_on(async {
            let sealed = Sealed::new(sizes).await;
            let (read, fetched) = sealed.read().await.unwrap();
            assert!(read == sealed.frames, "other frames");
            assert!(fetched == sealed.stored, "the parts do not make the object");
        });
    }

    #[test]
    fn any_flipped_bit_is_found(sizes in sizes(), at in any::<prop::sample::Index>(), bit in 0..8_u32, early in any::<bool>()) {
        block_on(async {
            let sealed = Sealed::new(sizes).await;
            let mut stored = sealed.stored.clone();
            let at = at.index(if early { 300.min(stored.len()) } else { stored.len() });
            stored[at] ^= 1 << bit;
            let error = sealed.replaced(stored).await.read().await.expect_err("it was read");
            assert!(error.contains("failed to"), "{error}");
        });
    }

    #[test]
    fn any_lost_end_is_found(sizes in sizes(), at in any::<prop::sample::Index>()) {
        block_on(async {
            let sealed = Sealed::new(sizes).await;
            let length = at.index(sealed.stored.len());
            assert!(sealed.replaced(sealed.stored[..length].to_vec()).await.read().await.is_err());
        });
    }
}

/// Also where whoever cut it has written a manifest that fits: no chunk but the last one ends an age file.
#[tokio::test]
async fn an_object_that_was_cut_between_two_chunks_is_none_even_if_its_manifest_agrees() {
    let sealed = Sealed::new(vec![64 << 10, 64 << 10, 64 << 10]).await;
    let cut = sealed.stored.len() - (64 << 10) - 16;
    let mut shorter = sealed.replaced(sealed.stored[..cut].to_vec()).await;
    shorter.sizes.pop();
    let (name, blake3, recipients) = (Nonce::random(), Hash::of(b"x"), Pair::new().seal());
    let Seal::Age { recipients, .. } = recipients else { panic!("it is encrypted") };
    let age = Some(Age { recipients: recipients.fingerprints(), bytes: cut as u64 });
    let data = Data { name, blake3, plain_bytes: 1, frames: shorter.sizes.clone(), age };
    shorter.layout = Layout::of(&data).unwrap();
    let error = shorter.read().await.unwrap_err();
    assert!(error.contains("failed to decrypt"), "{error}");
    // The same with a manifest that knows less than there is.
    let mut longer = sealed.replaced(sealed.stored.clone()).await;
    (longer.layout, longer.sizes) = (shorter.layout, shorter.sizes);
    assert!(longer.read().await.is_err());
}
