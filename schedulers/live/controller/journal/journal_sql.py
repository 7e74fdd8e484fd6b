"""SQL statements of the journal, for SQLite and PostgreSQL.

``{big}`` stands for the type of a 64-bit integer.
"""

from __future__ import annotations

TABLES = (
    "CREATE TABLE presage_journal (version INTEGER NOT NULL, snapshot_seq {big} NOT NULL)",
    "CREATE TABLE presage_journal_entries (seq {big} PRIMARY KEY, time_unix_s DOUBLE PRECISION"
    " NOT NULL, job_id TEXT, record TEXT NOT NULL)",
    "CREATE INDEX presage_journal_by_job ON presage_journal_entries (job_id, seq)"
    " WHERE job_id IS NOT NULL",
    "CREATE TABLE presage_journal_rows (key TEXT PRIMARY KEY, content TEXT NOT NULL)",
    "INSERT INTO presage_journal VALUES (1, 0)",
)
# From version 1 to 2: hashes of entries and rows, and the seal of all.
SEALED_TABLES = (
    *(
        f"ALTER TABLE presage_journal ADD COLUMN {column} NOT NULL DEFAULT {value}"
        for column, value in (
            ("key_id TEXT", "''"),
            ("anchor_seq {big}", "0"),
            ("anchor TEXT", "''"),
            ("last_seq {big}", "0"),
            ("last TEXT", "''"),
            ("snapshot TEXT", "''"),
            ("seal TEXT", "''"),
        )
    ),
    "ALTER TABLE presage_journal_entries ADD COLUMN mac TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE presage_journal_rows ADD COLUMN mac TEXT NOT NULL DEFAULT ''",
)
STORED_VERSION = "SELECT version FROM presage_journal"
SEAL = (
    "SELECT key_id, seal, anchor_seq, anchor, last_seq, last, snapshot_seq, snapshot"
    " FROM presage_journal"
)
SET_SEAL = (
    "UPDATE presage_journal SET version = ?, key_id = ?, seal = ?, anchor_seq = ?, anchor = ?,"
    " last_seq = ?, last = ?, snapshot_seq = ?, snapshot = ?"
)
FIRST_AND_LAST = "SELECT min(seq), max(seq) FROM presage_journal_entries"
APPEND = "INSERT INTO presage_journal_entries VALUES (?, ?, ?, ?, ?)"
ENTRIES = "SELECT seq, time_unix_s, job_id, record, mac FROM presage_journal_entries"
READ = f"{ENTRIES} WHERE seq > ? ORDER BY seq LIMIT ?"
MAC_OF = "SELECT mac FROM presage_journal_entries WHERE seq = ?"
RESEAL = "UPDATE presage_journal_entries SET record = ?, mac = ? WHERE seq = ?"
JOB_ENTRIES = (
    "SELECT one.seq, one.time_unix_s, one.job_id, one.record, one.mac, before.mac"
    " FROM presage_journal_entries AS one"
    " LEFT JOIN presage_journal_entries AS before ON before.seq = one.seq - 1"
    " WHERE one.job_id = ? ORDER BY one.seq DESC LIMIT ?"
)
ROWS = "SELECT key, content, mac FROM presage_journal_rows"
MACS = "SELECT mac FROM presage_journal_rows WHERE key IN"
UPSERT = (
    "INSERT INTO presage_journal_rows VALUES (?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET content = excluded.content, mac = excluded.mac"
)
DELETE_ROW = "DELETE FROM presage_journal_rows WHERE key = ?"
NOT_OLDER = (
    "SELECT seq FROM presage_journal_entries WHERE seq <= ? AND time_unix_s >= ?"
    " ORDER BY seq LIMIT 1"
)
PRUNE = "DELETE FROM presage_journal_entries WHERE seq < ?"
