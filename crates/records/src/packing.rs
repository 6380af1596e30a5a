//! Short forms of the parts of a mark.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// The sign of a field with packed bytes.
pub(crate) const PACKED: char = '~';

/// The places of the hyphens of a UUID.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// A UUID as 22 characters.
pub(crate) fn pack_uuid(text: &str) -> Option<String> {
    let has_form = text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| (byte == b'-') == HYPHENS.contains(&at));
    let bytes = from_hex(&text.replace('-', "")).filter(|_| has_form)?;
    Some(format!("{PACKED}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// The UUID of what comes after [`PACKED`].
pub(crate) fn unpack_uuid(packed: &str) -> Option<String> {
    let bytes = URL_SAFE_NO_PAD.decode(packed).ok().filter(|bytes| bytes.len() == 16)?;
    let mut text = to_hex(&bytes);
    HYPHENS.iter().for_each(|at| text.insert(*at, '-'));
    Some(text)
}

/// A container id of 64 lower-case hexadecimal digits as 43 characters, any other as it is.
pub(crate) fn pack_container(id: &str) -> String {
    match from_hex(id) {
        Some(bytes) if id.len() == 64 => format!("{PACKED}{}", URL_SAFE_NO_PAD.encode(bytes)),
        _ => id.to_owned(),
    }
}

/// The container id of a packed or a plain one.
pub(crate) fn unpack_container(text: &str) -> Option<String> {
    match text.strip_prefix(PACKED) {
        None => Some(text.to_owned()),
        Some(packed) => {
            let bytes = URL_SAFE_NO_PAD.decode(packed).ok()?;
            (bytes.len() == 32).then(|| to_hex(&bytes))
        }
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if !text.bytes().all(is_hex) {
        return None;
    }
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn to_radix_36(mut number: u32) -> String {
    let mut digits = Vec::new();
    while number > 0 {
        digits.extend(char::from_digit(number % 36, 36));
        number /= 36;
    }
    digits.iter().rev().collect()
}

/// The end of a text, with `…` for what is cut off.
pub(crate) fn last_part(text: &str, room: usize) -> String {
    const CUT: &str = "…";
    let text: String = text.split_whitespace().collect::<Vec<_>>().join("_");
    if text.len() <= room {
        return text;
    }
    let Some(room) = room.checked_sub(CUT.len()).filter(|room| *room >= 4) else {
        return String::new();
    };
    let mut from = text.len() - room;
    while !text.is_char_boundary(from) {
        from += 1;
    }
    format!("{CUT}{}", &text[from..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_four_digits_become_forty_three_characters() {
        let digits = "0123456789abcdef".repeat(4);
        let packed = pack_container(&digits);
        assert_eq!(packed.len(), 44);
        assert_eq!(unpack_container(&packed), Some(digits));
        for id in ["c1", &"A".repeat(64), &"0123456789abcdef".repeat(3)] {
            assert_eq!(pack_container(id), id);
        }
    }
}
