//! Files with keys as people write them, and what is said of those that are wrong.

use age::secrecy::ExposeSecret;
use age::x25519::Identity;
use proptest::prelude::*;

use super::*;

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    fs::write(&path, text).unwrap();
    (folder, path)
}

fn recipients(text: &str) -> Result<Recipients, KeysError> {
    let (_folder, path) = file(text);
    Recipients::read(&path)
}

fn identities(text: &str) -> Result<Identities, KeysError> {
    let (_folder, path) = file(text);
    Identities::read(&path)
}

/// A pair of age's own tests, and the fingerprint that `b3sum` gives for its public key.
const PRIVATE: &str = "AGE-SECRET-KEY-1GQ9778VQXMMJVE8SK7J6VT8UJ4HDQAJUVSFCWCM02D8GEWQ72PVQ2Y5J33";
const PUBLIC: &str = "age1t7rxyev2z3rw82stdlrrepyc39nvn86l5078zqkf5uasdy86jp6svpy7pa";

#[test]
fn the_file_of_age_keygen_is_read_and_so_are_comments_and_line_ends_of_any_kind() {
    let text = format!("# created: 2026-11-21T14:25:36Z\r\n# public key: {PUBLIC}\r\n{PRIVATE}\r\n\r\n");
    let read = identities(&text).unwrap();
    assert_eq!(read.recipients(), recipients(&format!("\n  {PUBLIC}  \n# a comment\n{PUBLIC}")).unwrap());
    let fingerprint = "69ed3690a8ab9951".to_owned();
    assert_eq!(read.recipients().fingerprints(), [Fingerprint::try_from(fingerprint).unwrap()]);
}

#[test]
fn what_is_wrong_is_told_by_its_line_and_never_shown() {
    let shown = [
        recipients("").unwrap_err(),
        recipients("# nothing").unwrap_err(),
        recipients(&format!("{PUBLIC}\nage1hush")).unwrap_err(),
        recipients(PRIVATE).unwrap_err(),
        identities("").unwrap_err(),
        identities(PUBLIC).unwrap_err(),
        identities(&format!("{PRIVATE}hush")).unwrap_err(),
        KeyFiles { recipients: Some("/nowhere".into()), identity: None }.recipients().unwrap_err(),
    ]
    .map(|error| error.to_string());
    let words =
        ["holds no key", "holds no key", "line 2 of", "is a private key", "holds no key", "line 1 of", "line 1 of"];
    for (text, word) in shown.iter().zip(words.iter().chain(&["/nowhere"])) {
        assert!(text.contains(word), "{word}: {text}");
        assert!(!text.contains("hush") && !text.contains(&PRIVATE[..20]), "{text}");
    }
    let many: Vec<_> = (0..33).map(|_| Identity::generate().to_public().to_string()).collect();
    assert!(matches!(recipients(&many.join("\n")), Err(KeysError::TooMany { most: 32, .. })));
    let debug = format!("{:?}", identities(PRIVATE).unwrap());
    assert!(!debug.contains(&PRIVATE[16..30]) && !debug.contains(PUBLIC), "{debug}");
}

#[test]
fn without_a_file_nothing_is_encrypted_and_what_is_can_not_be_read() {
    let none = KeyFiles::default();
    assert_eq!(none.recipients().unwrap(), None);
    let wanted = recipients(PUBLIC).unwrap().fingerprints();
    let error = none.identities_for(&wanted, "the backup").unwrap_err().to_string();
    assert!(error.contains(wanted[0].as_str()) && error.contains("--identity-file"), "{error}");
    assert!(error.contains("encryption.secretName"), "{error}");

    let other = Identity::generate();
    let (_folder, path) = file(other.to_string().expose_secret());
    let files = KeyFiles { recipients: None, identity: Some(path) };
    let error = files.identities_for(&wanted, "the backup").unwrap_err().to_string();
    let own = Recipients::new(vec![other.to_public()]).fingerprints();
    for word in [wanted[0].as_str(), own[0].as_str(), "--identity-file"] {
        assert!(error.contains(word), "{word}: {error}");
    }
    assert!(files.identities_for(&[wanted, own].concat(), "the backup").is_ok());
}

#[test]
fn recipients_are_found_again_by_all_their_fingerprints_or_not_at_all() {
    let [one, two] = [(); 2].map(|()| Identity::generate().to_public());
    let both = Recipients::new(vec![one.clone(), two.clone()]);
    assert_eq!(both, Recipients::new(vec![two.clone(), one.clone(), two]));
    let one = Recipients::new(vec![one]);
    assert_eq!(both.only(&one.fingerprints()), Some(one.clone()));
    assert_eq!(both.only(&both.fingerprints()), Some(both.clone()));
    assert_eq!(one.only(&both.fingerprints()), None);
    assert_ne!(one.hash_key(), both.hash_key());
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(?s).{0,200}") {
        prop_assert!(recipients(&text).is_err());
        prop_assert!(identities(&text).is_err());
    }
}
