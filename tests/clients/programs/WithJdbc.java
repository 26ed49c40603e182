// What `test_clients.py` asks of every client, by pgjdbc: `java -cp postgresql.jar WithJdbc.java URL` prints what it saw.

import java.io.*;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.sql.*;
import java.util.*;
import java.util.concurrent.*;
import org.postgresql.PGConnection;

class WithJdbc {
    static final Map<String, String> SEEN = new LinkedHashMap<>();

    static String quoted(String text) {
        return text == null ? "null" : "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }

    static String value(Connection connection, String statement) throws SQLException {
        try (Statement running = connection.createStatement(); ResultSet rows = running.executeQuery(statement)) {
            rows.next();
            return rows.getString(1);
        }
    }

    static void call(Connection connection, String statement, String... parameters) throws SQLException {
        try (PreparedStatement prepared = connection.prepareStatement(statement)) {
            for (int i = 0; i < parameters.length; i++) {
                prepared.setString(i + 1, parameters[i]);
            }
            prepared.execute();
        }
    }

    static void insert(Connection connection, String customer, String amount) throws SQLException {
        try (PreparedStatement prepared =
                connection.prepareStatement("INSERT INTO orders (customer, amount) VALUES (?, ?)")) {
            prepared.setString(1, customer);
            prepared.setBigDecimal(2, new BigDecimal(amount));
            prepared.executeUpdate();
        }
    }

    public static void main(String[] arguments) throws Exception {
        try (Connection connection = DriverManager.getConnection(arguments[0]);
                Connection other = DriverManager.getConnection(arguments[0])) {
            tables(connection);
            failures(connection);
            bulk(connection);
            others(connection, other);
            queues(connection);
            StringJoiner notices = new StringJoiner(", ", "[", "]");
            for (SQLWarning warning = connection.getWarnings(); warning != null; warning = warning.getNextWarning()) {
                notices.add(quoted(warning.getMessage()));
            }
            SEEN.put("notices", notices.toString());
        }
        StringJoiner json = new StringJoiner(", ", "{", "}");
        SEEN.forEach((step, value) -> json.add(quoted(step) + ": " + value));
        new PrintStream(System.out, true, StandardCharsets.UTF_8).println(json);
    }

    static void tables(Connection connection) throws SQLException {
        try (PreparedStatement prepared =
                connection.prepareStatement("SELECT ?::int, ?::text, ?::text, ?::bytea, ?::numeric, ?::bool")) {
            prepared.setInt(1, 42);
            prepared.setString(2, "Grüße, 世界");
            prepared.setNull(3, Types.VARCHAR);
            prepared.setBytes(4, new byte[] {0, (byte) 255});
            prepared.setBigDecimal(5, new BigDecimal("12345678901234567890.123456789"));
            prepared.setBoolean(6, true);
            ResultSet row = prepared.executeQuery();
            row.next();
            SEEN.put("values", "[" + row.getInt(1) + ", " + quoted(row.getString(2)) + ", " + quoted(row.getString(3))
                + ", " + quoted(HexFormat.of().formatHex(row.getBytes(4))) + ", "
                + quoted(row.getBigDecimal(5).toPlainString()) + ", " + row.getBoolean(6) + "]");
        }
        call(connection, "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text,"
            + " amount numeric(10, 2))");
        insert(connection, "a", "10.25");
        insert(connection, "a", "20.25");
        call(connection, "SELECT pgtrickle.create_stream_table(name => ?, query => ?)", "totals",
            "SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer");
        connection.setAutoCommit(false);
        insert(connection, "b", "1");
        call(connection, "SELECT pgtrickle.refresh_stream_table(?)", "totals");
        connection.commit();
        StringJoiner refreshed = new StringJoiner(", ", "[", "]");
        try (Statement statement = connection.createStatement(); ResultSet rows =
                statement.executeQuery("SELECT customer, orders, total FROM totals ORDER BY customer")) {
            while (rows.next()) {
                refreshed.add("[" + quoted(rows.getString(1)) + ", " + rows.getLong(2) + ", "
                    + quoted(rows.getBigDecimal(3).toPlainString()) + "]");
            }
        }
        SEEN.put("refreshed", refreshed.toString());
        call(connection, "SELECT pgtrickle.create_stream_table(?, ?)", "passing", "SELECT customer FROM orders");
        connection.rollback();
        connection.setAutoCommit(true);
        SEEN.put("rolled back",
            value(connection, "SELECT count(*) FROM pgtrickle.pgt_status() WHERE name = 'public.passing'"));
    }

    static void failures(Connection connection) throws SQLException {
        try {
            call(connection, "SELECT pgtrickle.create_stream_table(?, ?)", "broken", "SELECT x FROM nowhere");
        } catch (SQLException error) {
            SEEN.put("failed", quoted(error.getSQLState()));
        }
        SEEN.put("usable", value(connection, "SELECT 1"));
        try (Statement statement = connection.createStatement()) {
            statement.setQueryTimeout(1);
            statement.execute("SELECT pg_sleep(60)");
        } catch (SQLException error) {
            SEEN.put("cancelled", quoted(error.getSQLState()));
        }
    }

    static void bulk(Connection connection) throws Exception {
        call(connection, "CREATE TABLE numbers (n int PRIMARY KEY)");
        call(connection, "SELECT pgtrickle.create_stream_table(?, ?)", "sums",
            "SELECT count(*) AS c, sum(n) AS s FROM numbers");
        try (PreparedStatement batch = connection.prepareStatement("INSERT INTO numbers VALUES (?)")) {
            for (int n = 0; n < 1000; n++) {
                batch.setInt(1, n);
                batch.addBatch();
            }
            batch.executeBatch();
        }
        call(connection, "SELECT pgtrickle.refresh_stream_table(?)", "sums");
        SEEN.put("batch", "[" + value(connection, "SELECT c FROM sums") + ", "
            + value(connection, "SELECT s FROM sums") + "]");

        call(connection, "CREATE TABLE lines (n int, line text)");
        StringBuilder lines = new StringBuilder();
        for (int n = 0; n < 10000; n++) {
            lines.append(n).append("\tline ").append(n).append('\n');
        }
        var copying = connection.unwrap(PGConnection.class).getCopyAPI();
        copying.copyIn("COPY lines FROM STDIN", new StringReader(lines.toString()));
        StringWriter copied = new StringWriter();
        copying.copyOut("COPY lines TO STDOUT", copied);
        SEEN.put("copied", "" + copied.toString().lines().count());

        connection.setAutoCommit(false);
        long fetched = 0;
        try (Statement statement = connection.createStatement()) {
            statement.setFetchSize(1000);
            ResultSet rows = statement.executeQuery("SELECT n FROM generate_series(1, 10000) AS n");
            while (rows.next()) {
                fetched += rows.getInt(1);
            }
        }
        SEEN.put("fetched", "" + fetched);
        connection.commit();
        connection.setAutoCommit(true);
    }

    static void others(Connection connection, Connection other) throws SQLException {
        call(connection, "LISTEN news");
        call(other, "SELECT pg_notify('news', 'hello')");
        var notifications = connection.unwrap(PGConnection.class).getNotifications(60000);
        SEEN.put("notified", quoted(notifications[0].getParameter()));
        connection.setAutoCommit(false);
        StringJoiner subscribed = new StringJoiner(", ", "[", "]");
        try (Statement statement = connection.createStatement()) {
            statement.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT id::text AS id FROM orders WHERE customer = 'a')");
            ResultSet rows = statement.executeQuery("FETCH 2 c");
            while (rows.next()) {
                subscribed.add(quoted(rows.getString(3)));
            }
        }
        SEEN.put("subscribed", subscribed.toString());
        connection.commit();
        connection.setAutoCommit(true);
    }

    static void queues(Connection connection) throws SQLException {
        call(connection, "SELECT pgque.create_queue(?), pgque.subscribe('orders', 'billing')", "orders");
        call(connection, "SELECT pgque.send('orders', 'order.created', ?::jsonb)", "{\"order_id\": 42}");
        call(connection, "SELECT pgque.force_next_tick(?), pgque.ticker('orders')", "orders");
        SEEN.put("event", value(connection, "SELECT payload::jsonb FROM pgque.receive('orders', 'billing', 10)"));
    }
}
