import t from 'tap'
import { clientScripts, realPython, tryScripts } from './python-scripts.ts'

// Most of the time goes by in imports, which on a slow machine take many minutes.
t.setTimeout(2_400_000)

t.test('clients in Python', realPython(), t => tryScripts(t, 'Python', clientScripts(false)))
