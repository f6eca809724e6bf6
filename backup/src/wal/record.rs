//! The few protobuf messages of etcd's write-ahead log, read by hand: three of them, of three fields each. It knows
//! nothing of frames, checksums or files.

/// A `walpb.Record`, or an error in its bytes. Its fields: 1 the type, 2 the checksum, 3 the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// What the data is.
    pub kind: u64,
    /// The running checksum after this record.
    pub crc: u32,
    /// The message inside.
    pub data: &'a [u8],
}

/// Bytes that are no message of the expected form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl<'a> Record<'a> {
    /// Reads a record.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut record = Self { kind: 0, crc: 0, data: &[] };
        for field in Fields(bytes) {
            match field? {
                (1, Value::Number(kind)) => record.kind = kind,
                (2, Value::Number(crc)) => record.crc = u32::try_from(crc).map_err(|_| Malformed)?,
                (3, Value::Bytes(data)) => record.data = data,
                _ => return Err(Malformed),
            }
        }
        Ok(record)
    }
}

/// How long a record says that it is, judged by its head: type, checksum and the length of the data, in etcd's order.
pub fn declared_length(record: &[u8]) -> Option<usize> {
    let mut rest = Fields(record);
    for key in [KIND_KEY, CRC_KEY] {
        if rest.number().ok()? != key {
            return None;
        }
        rest.number().ok()?;
    }
    if rest.number().ok()? != DATA_KEY {
        return None;
    }
    let data = usize::try_from(rest.number().ok()?).ok()?;
    (record.len() - rest.0.len()).checked_add(data)
}

/// The keys of a record's fields as they are written: number and kind of value.
const KIND_KEY: u64 = 1 << 3;
const CRC_KEY: u64 = 2 << 3;
const DATA_KEY: u64 = 3 << 3 | 2;

/// Whether a message consists of nothing but number fields that are zero: a `raftpb.HardState` without term, vote and
/// commit, or a `walpb.Snapshot` of index 0 and term 0 without voters.
pub fn is_all_zero(message: &[u8]) -> bool {
    Fields(message).all(|field| matches!(field, Ok((_, Value::Number(0)))))
}

/// The value of a field: only these two kinds occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, in their order. Ends after an error.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Result<(u64, Value<'a>), Malformed> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => Value::Number(self.number()?),
            2 => {
                let length = usize::try_from(self.number()?).map_err(|_| Malformed)?;
                let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
                self.0 = rest;
                Value::Bytes(bytes)
            }
            _ => return Err(Malformed),
        };
        Ok((key >> 3, value))
    }

    /// A variable-length number: seven bits a byte, the lowest first.
    fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                return Err(Malformed);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_record_of_etcd_is_read() {
        let bytes = [8, 2, 16, 0xac, 2, 26, 3, b'a', b'b', b'c'];
        assert_eq!(Record::read(&bytes), Ok(Record { kind: 2, crc: 300, data: b"abc" }));
        assert_eq!(Record::read(&[]), Ok(Record { kind: 0, crc: 0, data: b"" }));
    }

    #[test]
    fn bytes_of_another_form_are_malformed() {
        let too_long = [8, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0];
        let too_large = [8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        let crc_too_large = [16, 0xff, 0xff, 0xff, 0xff, 0xff, 0];
        let unknown_field = [32, 1];
        let fixed = [9, 0, 0, 0, 0, 0, 0, 0, 0];
        let cut = [26, 4, b'a'];
        for bytes in [&too_long[..], &too_large, &crc_too_large[..6], &unknown_field, &fixed, &cut, &[0x80]] {
            assert_eq!(Record::read(bytes), Err(Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn a_records_head_says_its_length() {
        let bytes = [8, 2, 16, 0xac, 2, 26, 3, b'a', b'b', b'c'];
        for cut in 7..=bytes.len() {
            assert_eq!(declared_length(&bytes[..cut]), Some(bytes.len()));
        }
        assert_eq!(declared_length(&bytes[..6]), None);
        assert_eq!(declared_length(&bytes[2..]), None);
        assert_eq!(declared_length(&[8, 4, 16, 0]), None);
    }

    #[test]
    fn only_zeros_are_all_zero() {
        assert!(is_all_zero(&[]));
        assert!(is_all_zero(&[8, 0, 16, 0, 24, 0]));
        assert!(!is_all_zero(&[8, 1, 16, 0, 24, 0]));
        assert!(!is_all_zero(&[8, 0, 26, 0]));
        assert!(!is_all_zero(&[8]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_malformed(bytes: Vec<u8>) {
            let _ = (Record::read(&bytes), is_all_zero(&bytes), declared_length(&bytes));
        }
    }
}
