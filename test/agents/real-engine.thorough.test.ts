import t from 'tap'
import { testRealEngine } from './sessions.ts'

t.setTimeout(1_200_000)

await testRealEngine(t, ['claude-code', 'codex'])
