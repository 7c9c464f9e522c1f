// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {IStaking} from "../../contracts/solidity/IStaking.sol";
import {IStorage} from "../../contracts/solidity/IStorage.sol";
import {ITraining} from "../../contracts/solidity/ITraining.sol";

/// A user's contract that bonds, reads and fails around the system contracts.
contract SystemUser {
    ITraining constant TRAINING = ITraining(address(0x1000));
    IStorage constant STORAGE = IStorage(address(0x1001));
    IStaking constant STAKING = IStaking(address(0x1002));

    uint256 public note;

    error Undone();

    constructor() payable {}

    function bond(uint256 money) external payable {
        STAKING.bond{value: money}();
        note = STAKING.bondOf(address(this));
    }

    function bondAndRevert(uint256 money) public payable {
        STAKING.bond{value: money}();
        require(STAKING.bondOf(address(this)) >= money, "not bonded");
        revert Undone();
    }

    /// The inner bond is undone, the outer one stays.
    function bondInTry(uint256 inner, uint256 outer) external payable returns (bytes memory why) {
        try this.bondAndRevert(inner) {
            note = 1;
        } catch (bytes memory reason) {
            why = reason;
        }
        STAKING.bond{value: outer}();
        note = STAKING.bondOf(address(this));
    }

    function catchNative(uint256 amount) external returns (bytes memory why) {
        try STAKING.unbond(amount) {
            note = 2;
        } catch (bytes memory reason) {
            why = reason;
        }
    }

    function bubble(uint64 run) external view returns (address) {
        return TRAINING.updates(run, 0)[0].member;
    }

    function read() external view returns (uint64 runs, uint256 tiers, uint256 nodes, uint256 codeSize) {
        return (TRAINING.numRuns(), STORAGE.tiers().length, STORAGE.nodes().length, address(TRAINING).code.length);
    }

    function writeStatically() external returns (bool isDone, bytes memory output) {
        (isDone, output) = address(STAKING).staticcall(abi.encodeCall(STAKING.unbond, (1)));
    }

    function delegate() external payable returns (bool isDone, bytes memory output) {
        (isDone, output) = address(STAKING).delegatecall(abi.encodeCall(STAKING.bond, ()));
    }

    function callcode() external payable returns (uint256 isDone) {
        bytes memory input = abi.encodeCall(STAKING.bond, ());
        assembly {
            isDone := callcode(gas(), 0x1002, callvalue(), add(input, 32), mload(input), 0, 0)
        }
    }

    function sendTo(address to, uint256 money) external returns (bool isDone) {
        (isDone,) = to.call{value: money}("");
    }

    function starve(uint256 gasLimit) external returns (bool isDone, bytes memory output) {
        (isDone, output) = address(STAKING).call{gas: gasLimit, value: 1}(abi.encodeCall(STAKING.bond, ()));
    }
}
