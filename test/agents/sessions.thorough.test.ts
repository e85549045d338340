import t from 'tap'
import { AGENTS, type AgentName } from './packages.ts'
import { testSessions } from './sessions.ts'

// The first run installs two gigabytes.
t.setTimeout(1_200_000)

const agents = (Object.keys(AGENTS) as AgentName[]).filter(agent => AGENTS[agent].tests === 'thorough')
await testSessions(t, agents)
