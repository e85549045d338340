/*
 * The entry `corral/testing` of the package, for tests of plugins. Everything is a plain function that rejects with an
 * AssertionError, so that it fits any test runner.
 */
export * from './contract-suites.ts'
export { echoEngine } from './echo-engine.ts'
export { startTestCorral, type TestCorral, type TestCorralOptions } from './test-corral.ts'
