import t from 'tap'
import { clientScripts, pythonFrameworks, tryScripts } from '../clients/python-scripts.ts'

// The imports take many minutes on a slow machine.
t.setTimeout(2_400_000)

t.test('frameworks in Python', pythonFrameworks(), t => tryScripts(t, 'Frameworks in Python', clientScripts(true)))
