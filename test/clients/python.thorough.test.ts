import t from 'tap'
import { clientScripts, realPython, tryScripts } from './python-scripts.ts'

// The imports alone take many minutes on a slow machine.
t.setTimeout(2_400_000)

t.test('clients in Python pass their trials', realPython(), t => tryScripts(t, 'Python', clientScripts(false)))
