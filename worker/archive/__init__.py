"""The archive: sessions that ended long ago, in SQLite or PostgreSQL.

It knows neither Redis nor what a document holds: rows have facts that can be searched, and documents are bytes. A row
has a revision that grows with each write; every write names the revision that its writer has read. Moving, restoring
and deleting are protocols over these rows; see docs/protocol.md.

    rows         the values
    database     connections, transactions, and the schema with its migrations
    dialects     the differences between SQLite and PostgreSQL, and their errors in words
    storing      writing rows
    searching    reading rows, and their documents
    spending     sums of costs
    archive      all of it as one object

SQLAlchemy is an extra: only `archive.open_archive` loads it.
"""
