import t from 'tap'
import { AGENTS, type AgentName } from '../agents/packages.ts'
import { testRealEngine, testSessions } from '../agents/sessions.ts'

t.setTimeout(1_200_000)

const agents = (Object.keys(AGENTS) as AgentName[]).filter(agent => AGENTS[agent].tests === 'long')
await testSessions(t, agents)
// The first prompts of other agents are longer than the context of the demo model.
// A separate test, because tap ends the file if nothing runs between two tests.
await t.test('with the real engine', t => testRealEngine(t, ['opencode', 'pi']))
