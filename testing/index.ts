/*
 * What plugins are tested with: the entry `corral/testing` of the package. All of it is plain functions that reject with
 * an AssertionError, so that they fit any test runner.
 */
export * from './contract-suites.ts'
export { echoEngine } from './echo-engine.ts'
export { startTestCorral, type TestCorral, type TestCorralOptions } from './test-corral.ts'
