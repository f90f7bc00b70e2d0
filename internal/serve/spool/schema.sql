-- The tables of a spool's file. Times are microseconds since 1970. A group's id is the number of its name, shifted by 44
-- bits, and its sequence. An epoch of a name begins with the sequence first and ends before the next epoch. moved_to is the name
-- that the groups were given to, or "".
CREATE TABLE names (
	number INTEGER PRIMARY KEY,
	name TEXT NOT NULL UNIQUE,
	id BLOB NOT NULL,
	drained INTEGER NOT NULL,
	last INTEGER NOT NULL,
	moved_to TEXT NOT NULL
);
CREATE TABLE groups (
	id INTEGER PRIMARY KEY,
	at INTEGER NOT NULL,
	rows INTEGER NOT NULL,
	sum INTEGER NOT NULL,
	payload BLOB NOT NULL
);
CREATE TABLE keys (
	number INTEGER NOT NULL,
	key TEXT NOT NULL,
	fingerprint BLOB NOT NULL,
	expires_at INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	accepted_at INTEGER NOT NULL,
	PRIMARY KEY (number, key)
) WITHOUT ROWID;
CREATE TABLE dead (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	name TEXT NOT NULL,
	sequence INTEGER NOT NULL,
	at INTEGER NOT NULL,
	rows INTEGER NOT NULL,
	reason TEXT NOT NULL,
	payload BLOB NOT NULL,
	raw INTEGER NOT NULL,
	in_doubt INTEGER NOT NULL
);
CREATE TABLE epochs (
	number INTEGER NOT NULL,
	first INTEGER NOT NULL,
	epoch BLOB NOT NULL,
	PRIMARY KEY (number, first)
) WITHOUT ROWID;
