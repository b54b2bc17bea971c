//! Parser of the messages in the bytes of a connection, in pieces of any size.

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    MySql,
    Postgres,
}

/// One direction of a connection.
pub struct Messages {
    protocol: Protocol,
    /// Whether the next message starts with a type letter: on PostgreSQL, all but a client's first.
    has_letter: bool,
    unread: Vec<u8>,
}

impl Messages {
    pub fn of_client(protocol: Protocol) -> Self {
        Self { protocol, has_letter: false, unread: Vec::new() }
    }

    pub fn of_server(protocol: Protocol) -> Self {
        Self { has_letter: true, ..Self::of_client(protocol) }
    }

    /// Returns the messages that are complete with these bytes.
    pub fn read(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.unread.extend_from_slice(bytes);
        std::iter::from_fn(|| self.next()).collect()
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let length = match self.protocol {
            Protocol::MySql => {
                let header = self.unread.first_chunk::<4>()?;
                4 + usize::from(header[0]) + (usize::from(header[1]) << 8) + (usize::from(header[2]) << 16)
            }
            Protocol::Postgres => {
                let letter = usize::from(self.has_letter);
                let length = self.unread.get(letter..)?.first_chunk::<4>()?;
                letter + usize::try_from(u32::from_be_bytes(*length)).expect("32 bits are few")
            }
        };
        if self.unread.len() < length {
            return None;
        }
        self.has_letter = true;
        let rest = self.unread.split_off(length);
        Some(std::mem::replace(&mut self.unread, rest))
    }
}

impl Protocol {
    /// Whether the server acts on a client's message, instead of keeping it for the next ones.
    pub fn acts_on(self, message: &[u8]) -> bool {
        const PARSE_BIND_DESCRIBE_EXECUTE_CLOSE: &[u8] = b"PBDEC";
        self == Self::MySql || !PARSE_BIND_DESCRIBE_EXECUTE_CLOSE.contains(&message[0])
    }

    /// Whether the message ends a server's answer. On MySQL, the message itself does not show it.
    pub fn ends_answer(self, message: &[u8]) -> bool {
        const READY_FOR_QUERY: u8 = b'Z';
        self == Self::Postgres && message[0] == READY_FOR_QUERY
    }

    /// Whether the message is a password, which belongs to the previous request.
    pub fn continues_request(self, message: &[u8]) -> bool {
        self == Self::Postgres && message[0] == b'p'
    }
}
