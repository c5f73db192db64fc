"""Database access: the Store, its errors, tables and queries."""

from sqlalchemy import Connection as Connection
from sqlalchemy import Row as Row

from ammeter_server.db.engine import Store as Store
from ammeter_server.db.engine import connect as connect
from ammeter_server.db.errors import DatabaseError as DatabaseError
from ammeter_server.db.errors import StoreAwayError as StoreAwayError
from ammeter_server.db.errors import StoreBrokenError as StoreBrokenError
from ammeter_server.db.errors import StoreFullError as StoreFullError
from ammeter_server.db.errors import StoreRefusingError as StoreRefusingError
from ammeter_server.db.errors import reason_of as reason_of
