# Wheels of the Python module, of numpy and of scapy, in /files/packages, on a Debian with its own Python: installed, used, removed.
python3 -m venv /tmp/environment
PATH=/tmp/environment/bin:$PATH
pip install --quiet --no-index --find-links /files/packages nocopy scapy
python -X dev -W error /files/verdicts.py /files/repository/crates/nocopy-python/tests 300
[ -e "$(python -c 'import nocopy, os; print(os.path.dirname(nocopy.__file__))')/py.typed" ]
pip uninstall --quiet --yes nocopy
python -c 'import nocopy' 2> /tmp/refused && exit 1
grep -q "No module named 'nocopy'" /tmp/refused
