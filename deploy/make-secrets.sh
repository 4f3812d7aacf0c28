#!/bin/sh
# Makes the secrets of compose.yaml beside it, in the folder `secrets`; what is there already stays as it is.
# Only their owner can enter the folder. The files in it can be read, for users of the containers have other numbers.
set -eu
umask 077
mkdir -p "$(dirname "$0")/secrets"
cd "$(dirname "$0")/secrets"

keep() { # NAME: the text of stdin, unless there is one
    if [ ! -s "$1" ]; then
        cat >"$1.new"
        [ -s "$1.new" ] # otherwise what makes it has failed: an empty one would be kept, and stand in the others
        chmod 0444 "$1.new"
        mv "$1.new" "$1"
    fi
}

openssl rand -hex 24 | keep postgres-password
openssl rand -hex 10 | keep s3-access-key
openssl rand -hex 30 | keep s3-secret-key
key=$(openssl rand -base64 32)
echo "first $key" | keep payload-keys
password=$(cat postgres-password)
echo "postgresql+psycopg://sexton:$password@postgres:5432/sexton" | keep database-url
