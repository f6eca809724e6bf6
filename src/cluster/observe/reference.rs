//! References of container images, as far as one can be told to be another under a different name. Resolves nothing.

/// Whether an image that was asked for is what a pod has: under the very name, or as an admission webhook writes it that brings
/// images from a mirror, pins them by digest, or both. Anything else was put there by somebody for another image.
pub fn is_the_same(asked: &str, given: &str) -> bool {
    let (asked, given) = (Reference::of(asked), Reference::of(given));
    let is_pinned = given.digest.is_some() && asked.digest.is_none();
    let same_digest = asked.digest == given.digest || is_pinned;
    let same_tag = asked.tag == given.tag || (given.tag.is_none() && given.digest.is_some());
    asked.name == given.name && same_tag && same_digest
}

#[derive(Debug, PartialEq, Eq)]
struct Reference<'a> {
    /// The last part of the repository's path: what is before it tells where it comes from.
    name: &'a str,
    tag: Option<&'a str>,
    digest: Option<&'a str>,
}

impl<'a> Reference<'a> {
    fn of(text: &'a str) -> Self {
        let (named, digest) = text.split_once('@').map_or((text, None), |(named, digest)| (named, Some(digest)));
        // The colon of a port comes before a slash.
        let last = named.rsplit_once('/').map_or(named, |(_, last)| last);
        let (name, tag) = last.split_once(':').map_or((last, None), |(name, tag)| (name, Some(tag)));
        Self { name, tag, digest }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ASKED: &str = "quay.io/coreos/etcd:v3.6.16";

    #[test]
    fn a_mirrors_or_pinned_name_is_of_the_same_image() {
        for given in [
            ASKED,
            "mirror.example:5000/quay/coreos/etcd:v3.6.16",
            "etcd:v3.6.16",
            "quay.io/coreos/etcd:v3.6.16@sha256:aa",
            "quay.io/coreos/etcd@sha256:aa",
            "mirror.example/etcd@sha256:aa",
        ] {
            assert!(is_the_same(ASKED, given), "{given}");
        }
        assert!(is_the_same("a.example/etcd@sha256:aa", "b.example:5000/x/etcd@sha256:aa"));
    }

    #[test]
    fn another_tag_digest_or_name_is_another_image() {
        for given in ["quay.io/coreos/etcd:v3.6.17", "quay.io/coreos/etcd", "quay.io/coreos/other:v3.6.16", ""] {
            assert!(!is_the_same(ASKED, given), "{given}");
        }
        assert!(!is_the_same("etcd@sha256:aa", "etcd@sha256:bb"));
        assert!(!is_the_same("etcd@sha256:aa", "etcd:v3.6.16"), "what was pinned is not any more");
    }

    proptest! {
        #[test]
        fn any_reference_is_the_same_as_itself_also_from_a_mirror(asked in "[ -~]{0,60}") {
            prop_assert!(is_the_same(&asked, &asked));
            let mirrored = format!("mirror.example:5000/{asked}");
            prop_assert!(asked.contains(['/', '@']) || is_the_same(&asked, &mirrored));
        }
    }
}
