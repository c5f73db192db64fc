"""Queries on the tables, one file per reader, and the way to the database."""

from sqlalchemy import Connection as Connection
from sqlalchemy import Row as Row

from ammeter_server.store.away import DatabaseError as DatabaseError
from ammeter_server.store.away import StoreAwayError as StoreAwayError
from ammeter_server.store.away import StoreBrokenError as StoreBrokenError
from ammeter_server.store.away import StoreFullError as StoreFullError
from ammeter_server.store.away import StoreRefusingError as StoreRefusingError
from ammeter_server.store.away import reason_of as reason_of
from ammeter_server.store.engine import Store as Store
from ammeter_server.store.engine import connect as connect
