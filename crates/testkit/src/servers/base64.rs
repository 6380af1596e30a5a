//! Base64, as JSON carries bytes.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for piece in text.as_bytes().chunks(3) {
        let bits = piece.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte))
            << (8 * (3 - piece.len()));
        for place in 0..4 {
            let digit = DIGITS[bits >> (18 - 6 * place) & 63];
            encoded.push(if place > piece.len() { '=' } else { char::from(digit) });
        }
    }
    encoded
}

/// What is no UTF-8 is replaced.
pub fn decode(encoded: &str) -> String {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for digit in encoded.bytes().take_while(|digit| *digit != b'=') {
        let value = DIGITS.iter().position(|known| *known == digit).expect("base64");
        bits = bits << 6 | u32::try_from(value).unwrap();
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
